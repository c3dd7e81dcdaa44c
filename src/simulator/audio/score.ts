import { type Random, randomFrom } from './random.ts';

export type Voice = 'pad' | 'pluck' | 'bass' | 'kick' | 'snare' | 'hat';

/** One note or beat. Times in seconds from the start of the piece. */
export interface Note {
  readonly voice: Voice;
  readonly start: number;
  readonly duration: number;
  /** Hertz; 0 for beats. */
  readonly frequency: number;
  readonly gain: number;
}

type Scale = readonly [number, number, number, number, number, number, number];

const BRIGHT: readonly [Scale, ...Scale[]] = [
  [0, 2, 4, 5, 7, 9, 11],
  [0, 2, 4, 6, 7, 9, 11],
  [0, 2, 4, 5, 7, 9, 10],
];
const DARK: readonly [Scale, ...Scale[]] = [
  [0, 2, 3, 5, 7, 8, 10],
  [0, 2, 3, 5, 7, 9, 10],
];
/** Roots of four bars, as degrees of the scale. */
const PROGRESSIONS: readonly [readonly number[], ...(readonly number[])[]] = [
  [0, 4, 5, 3],
  [0, 5, 3, 4],
  [5, 3, 0, 4],
  [0, 3, 5, 4],
  [0, 2, 3, 4],
  [3, 4, 0, 5],
];
const SLOTS_PER_BAR = 8;
const CALM = /\b(calm|slow|soft|ambient|lullaby|sleep|gentle|meditat\w*|drone|rain|quiet)\b/i;
const LIVELY = /\b(fast|energetic|dance|techno|house|drum|upbeat|punk|rock|workout|racing|driving)\b/i;
const SAD = /\b(sad|dark|minor|melanchol\w*|lonely|tense|horror|noir|brooding|storm\w*)\b/i;
const HAPPY = /\b(happy|bright|major|sunny|cheerful|summer|playful|joy\w*|warm)\b/i;

interface Style {
  readonly beat: number;
  readonly root: number;
  readonly scale: Scale;
  readonly progression: readonly number[];
  readonly drums: boolean;
  readonly swing: number;
}

/** A piece of `seconds`, the same for the same seed. Words in it colour tempo, scale and drums. */
export function compose(seed: string, seconds: number): readonly Note[] {
  const random = randomFrom(seed);
  const style = chooseStyle(seed, random);
  const motifs = [makeMotif(random), makeMotif(random)] as const;
  const bass = makeBassPattern(random);
  const bar = style.beat * 4;
  const notes: Note[] = [];
  for (let index = 0; index * bar < seconds; index += 1) {
    const start = index * bar;
    const degree = style.progression[index % style.progression.length] ?? 0;
    const full = index >= 2 && index % 16 < 14;
    addPad(notes, style, start, degree, random);
    addMelody(notes, style, start, degree, index % 4 === 2 ? motifs[1] : motifs[0], random);
    if (index >= 1) addBass(notes, style, start, degree, bass);
    if (full && style.drums) addDrums(notes, style, start, index % 4 === 3, random);
  }
  return notes.filter((note) => note.start < seconds).sort((left, right) => left.start - right.start);
}

function chooseStyle(seed: string, random: Random): Style {
  const calm = CALM.test(seed);
  const lively = !calm && LIVELY.test(seed);
  const tempo = calm ? random.between(62, 84) : lively ? random.between(116, 138) : random.between(84, 116);
  const dark = SAD.test(seed) || (!HAPPY.test(seed) && random.next() < 0.45);
  return {
    beat: 60 / tempo,
    root: random.between(43, 54),
    scale: random.pick(dark ? DARK : BRIGHT),
    progression: random.pick(PROGRESSIONS),
    drums: !calm && (lively || random.next() < 0.8),
    swing: random.next() < 0.4 ? random.between(0.02, 0.1) : 0,
  };
}

/** A rhythm and a contour of one bar, in steps of the scale above the chord's root. */
type Motif = readonly (number | undefined)[];

function makeMotif(random: Random): Motif {
  const chordSteps: readonly [number, ...number[]] = [0, 2, 4, 7];
  let step = random.pick(chordSteps);
  return Array.from({ length: SLOTS_PER_BAR }, (_, slot) => {
    const strong = slot % 4 === 0;
    if (!strong && random.next() < 0.4) return undefined;
    step = strong
      ? random.pick(chordSteps)
      : Math.max(-1, Math.min(9, step + random.pick([-2, -1, -1, 1, 1, 2])));
    return step;
  });
}

function makeBassPattern(random: Random): readonly boolean[] {
  return Array.from(
    { length: SLOTS_PER_BAR },
    (_, slot) => slot === 0 || random.next() < (slot % 2 === 0 ? 0.6 : 0.2),
  );
}

/** The frequency of a degree of the scale; degrees go on above and below the octave. */
function pitch(style: Style, degree: number, octave: number): number {
  const size = style.scale.length;
  const within = ((degree % size) + size) % size;
  const semitones = (style.scale[within] ?? 0) + 12 * (octave + Math.floor(degree / size));
  return 440 * 2 ** ((style.root + semitones - 69) / 12);
}

function addPad(notes: Note[], style: Style, start: number, degree: number, random: Random): void {
  const duration = style.beat * 4.15;
  for (const step of [0, 2, 4]) {
    const frequency = pitch(style, degree + step, 1);
    notes.push({ voice: 'pad', start, duration, frequency, gain: random.between(0.1, 0.13) });
  }
}

function addMelody(
  notes: Note[],
  style: Style,
  start: number,
  degree: number,
  motif: Motif,
  random: Random,
): void {
  for (const [slot, step] of motif.entries()) {
    if (step === undefined) continue;
    const frequency = pitch(style, degree + step, 2);
    const at = start + slotTime(style, slot);
    const gain = random.between(0.2, 0.28);
    notes.push({ voice: 'pluck', start: at, duration: 1.4, frequency, gain });
    // A quieter repeat three eighths later: the room that a dry synthesis lacks.
    notes.push({ voice: 'pluck', start: at + style.beat * 1.5, duration: 1, frequency, gain: gain * 0.3 });
  }
}

function addBass(
  notes: Note[],
  style: Style,
  start: number,
  degree: number,
  pattern: readonly boolean[],
): void {
  for (const [slot, plays] of pattern.entries()) {
    if (!plays) continue;
    const frequency = pitch(style, slot === 6 ? degree + 4 : degree, 0);
    notes.push({
      voice: 'bass',
      start: start + slotTime(style, slot),
      duration: style.beat * 0.9,
      frequency,
      gain: 0.3,
    });
  }
}

function addDrums(notes: Note[], style: Style, start: number, fill: boolean, random: Random): void {
  const beat = (voice: Voice, slot: number, duration: number, gain: number) => {
    notes.push({ voice, start: start + slotTime(style, slot), duration, frequency: 0, gain });
  };
  for (const slot of [0, 4]) beat('kick', slot, 0.4, 0.5);
  if (random.next() < 0.35) beat('kick', 5, 0.4, 0.4);
  for (const slot of fill ? [2, 6, 7] : [2, 6]) beat('snare', slot, 0.22, 0.22);
  for (let slot = 0; slot < SLOTS_PER_BAR; slot += 1) beat('hat', slot, 0.08, slot % 2 === 0 ? 0.12 : 0.07);
}

function slotTime(style: Style, slot: number): number {
  return (slot / 2 + (slot % 2 === 1 ? style.swing : 0)) * style.beat;
}
