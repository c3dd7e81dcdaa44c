import type { Note } from './score.ts';

export const SAMPLE_RATE = 22_050;

const TABLE_SIZE = 8_192;
const TABLE_MASK = TABLE_SIZE - 1;
const SINE = Float32Array.from({ length: TABLE_SIZE }, (_, index) =>
  Math.sin((2 * Math.PI * index) / TABLE_SIZE),
);
/** Below full scale, so that a soft peak is never a clipped one. */
const CEILING = 0.85;
const DRIVE = 1.5;
const FADE_IN_SECONDS = 0.01;

/**
 * Samples `first` to `last` (exclusive) of the piece as 16-bit little-endian mono.
 * Every sample depends on its own time alone, so any part can be rendered without what comes before it.
 */
export function render(notes: readonly Note[], totalSamples: number, first: number, last: number): Buffer {
  const mix = new Float32Array(last - first);
  const from = first / SAMPLE_RATE;
  const to = last / SAMPLE_RATE;
  for (const note of notes) {
    if (note.start >= to) break;
    if (note.start + note.duration > from) addNote(mix, note, first, last);
  }
  const fadeOut = Math.min(1.2, (totalSamples / SAMPLE_RATE) * 0.15) * SAMPLE_RATE;
  const fadeIn = FADE_IN_SECONDS * SAMPLE_RATE;
  const bytes = Buffer.allocUnsafe(mix.length * 2);
  for (let index = 0; index < mix.length; index += 1) {
    const sample = first + index;
    const envelope = Math.min(1, (sample + 1) / fadeIn, (totalSamples - sample) / fadeOut);
    const level = Math.tanh((mix[index] ?? 0) * DRIVE) * CEILING * envelope;
    bytes.writeInt16LE(Math.round(level * 32_767), index * 2);
  }
  return bytes;
}

function addNote(mix: Float32Array, note: Note, first: number, last: number): void {
  const begin = Math.max(first, Math.ceil(note.start * SAMPLE_RATE));
  const end = Math.min(last, Math.floor((note.start + note.duration) * SAMPLE_RATE));
  const wave = WAVES[note.voice];
  for (let sample = begin; sample < end; sample += 1) {
    const time = sample / SAMPLE_RATE - note.start;
    const index = sample - first;
    // The last 5 ms of a note fade, so that none ends with a click.
    const release = Math.min(1, (note.duration - time) * 200);
    mix[index] = (mix[index] ?? 0) + wave(time, note, sample) * note.gain * release;
  }
}

type Wave = (time: number, note: Note, sample: number) => number;

const WAVES: Readonly<Record<Note['voice'], Wave>> = {
  pad: (time, { frequency, duration }) => {
    const swell = Math.min(1, time * 6, (duration - time) * 4);
    const tone =
      sine(frequency * 1.002 * time) + sine(frequency * 0.998 * time) + 0.3 * sine(frequency * 2 * time);
    return tone * 0.6 * swell;
  },
  pluck: (time, { frequency }) => {
    const attack = Math.min(1, time * 250);
    const phase = frequency * time;
    const overtones = 0.5 * sine(2 * phase) * decay(time * 5) + 0.25 * sine(3 * phase) * decay(time * 9);
    return (sine(phase) + overtones) * decay(time * 3.2) * attack;
  },
  bass: (time, { frequency }) => {
    const phase = frequency * time;
    return (sine(phase) + 0.35 * sine(2 * phase)) * decay(time * 1.8) * Math.min(1, time * 120);
  },
  kick: (time) => sine(45 * time + 2.2 * (1 - decay(time * 30))) * decay(time * 9),
  snare: (time, _note, sample) =>
    noise(sample) * decay(time * 18) * 0.8 + sine(190 * time) * decay(time * 22) * 0.6,
  hat: (time, _note, sample) => (noise(sample) - noise(sample - 1)) * 0.6 * decay(time * 60),
};

function sine(cycles: number): number {
  return SINE[Math.floor(cycles * TABLE_SIZE) & TABLE_MASK] ?? 0;
}

function decay(exponent: number): number {
  return Math.exp(-exponent);
}

/** White noise that depends on the sample's number alone. */
function noise(sample: number): number {
  let value = Math.imul(sample ^ 0x5f35_6495, 0x9e37_79b1);
  value ^= value >>> 15;
  value = Math.imul(value, 0x85eb_ca77);
  value ^= value >>> 13;
  return value / 2_147_483_648;
}
