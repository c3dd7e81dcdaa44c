import { describe, expect, test } from 'vitest';
import { AudioRenderer } from '../../src/simulator/audio/audio-file.ts';
import { compose } from '../../src/simulator/audio/score.ts';
import { render } from '../../src/simulator/audio/synthesis.ts';

function samplesOf(seed: string, seconds: number): Int16Array {
  const file = new AudioRenderer().open(seed, seconds);
  const bytes = file.read(0, file.byteLength);
  return new Int16Array(new Uint8Array(bytes.subarray(44)).buffer);
}

const PROMPTS = ['a calm piano in the rain', 'upbeat techno for a race', 'a sad cello at night', 'jazz'];

describe('the audio', () => {
  test.each([5, 10, 0.5, 7.25])('is a WAV file of exactly %d seconds', (seconds) => {
    const file = new AudioRenderer().open('a waltz', seconds);
    const bytes = file.read(0, file.byteLength);
    expect(bytes.length).toBe(file.byteLength);
    expect(bytes.toString('latin1', 0, 4) + bytes.toString('latin1', 8, 16)).toBe('RIFFWAVEfmt ');
    expect(bytes.readUInt32LE(4)).toBe(bytes.length - 8);
    expect([bytes.readUInt16LE(20), bytes.readUInt16LE(22), bytes.readUInt16LE(34)]).toEqual([1, 1, 16]);
    expect(bytes.readUInt32LE(40) / bytes.readUInt32LE(28)).toBeCloseTo(seconds, 4);
  });

  test.each(PROMPTS)('is heard in every second of %j, and never clipped', (prompt) => {
    const samples = samplesOf(prompt, 12);
    for (let second = 0; second < 12; second += 1) {
      const part = samples.subarray(second * 22_050, (second + 1) * 22_050);
      const rms = Math.sqrt(part.reduce((sum, sample) => sum + (sample / 32_768) ** 2, 0) / part.length);
      const peak = part.reduce((max, sample) => Math.max(max, Math.abs(sample)), 0) / 32_768;
      expect(rms).toBeGreaterThan(0.05);
      expect(rms).toBeLessThan(0.5);
      expect(peak).toBeGreaterThan(0.2);
      expect(peak).toBeLessThan(0.9);
    }
    expect(Math.abs(samples.at(-1) ?? 1)).toBeLessThan(50);
  });

  test('is another for another prompt, near as it may be, and the same for the same', () => {
    const prompts = [...PROMPTS, 'jazz.', 'Jazz', 'jazz '];
    const pieces = prompts.map((prompt) => samplesOf(prompt, 6));
    for (const [index, left] of pieces.entries()) {
      expect(samplesOf(prompts[index] ?? '', 6)).toEqual(left);
      for (const right of pieces.slice(index + 1)) expect(correlation(left, right)).toBeLessThan(0.6);
    }
  });

  test('is the same however it is cut', () => {
    const file = new AudioRenderer().open('a waltz', 5);
    const whole = new AudioRenderer().open('a waltz', 5).read(0, file.byteLength);
    const parts: Buffer[] = [];
    for (let at = 0; at < file.byteLength; at += 9_973) parts.push(file.read(at, at + 9_973));
    expect(Buffer.concat(parts).equals(whole)).toBe(true);
    const notes = compose('a waltz', 5);
    const middle = render(notes, 110_250, 33_333, 34_444);
    expect(middle.equals(whole.subarray(44 + 33_333 * 2, 44 + 34_444 * 2))).toBe(true);
    expect(file.read(150_000, 150_010).equals(whole.subarray(150_000, 150_010))).toBe(true);
  });
});

/** 1 for the same signal, near 0 for unrelated ones. */
function correlation(left: Int16Array, right: Int16Array): number {
  let product = 0;
  let leftPower = 0;
  let rightPower = 0;
  for (const [index, sample] of left.entries()) {
    const other = right[index] ?? 0;
    product += sample * other;
    leftPower += sample * sample;
    rightPower += other * other;
  }
  return Math.abs(product) / Math.sqrt(leftPower * rightPower);
}
