/** One song to order: `title` is its whole prompt. Words in it colour what the simulator composes. */
export interface Song {
  readonly title: string;
  readonly seconds: number;
}

const TITLES = [
  'rain on a tin roof, soft piano',
  'slow waltz for an empty hall',
  'night train, brushes and bass',
  'sunny porch, bright ukulele',
  'lighthouse lullaby, warm strings',
  'driving synths across the city',
  'harbour at dawn, calm guitar',
  'playful clarinet in the kitchen',
  'first snow, quiet celesta',
  'upbeat brass for a small parade',
  'desert road, dusty slide guitar',
  'gentle harp by the window',
  'techno for a very small room',
  'old cinema, melancholy cello',
  'picnic by the river, banjo',
  'in orbit, slow ambient drone',
  'summer bicycle, happy whistling',
  'midnight library, soft vibes',
  'market day, hand drums',
  'foghorn blues, lonely trumpet',
  'paper boats, music box',
  'rooftop party, house groove',
  'echo in the hills, quiet horns',
  'tram in the storm, dark jazz',
  'kite weather, cheerful flute',
  'candlelight, slow viola',
  'arcade racing, fast chiptune',
  'tea for two, warm accordion',
  'old photographs, minor piano',
  'the way home, joyful choir',
] as const;

/** Thirty songs of 8 to 12 seconds. No two prompts are alike, so each has a form of its own in the ledger. */
export const SONGS: readonly Song[] = TITLES.map((title, index) => ({ title, seconds: 8 + (index % 5) }));
