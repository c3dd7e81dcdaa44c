import { describe, expect, it } from 'vitest';
import { FIELD_LIMITS, limitsWith } from '../../src/core/field-limits.ts';
import { OPERATION_NAMES } from '../../src/core/operations.ts';
import { preflightRules } from '../../src/runtime/enqueue-options.ts';
import { ConfigurationError, resolveConfig } from '../../src/runtime/options.ts';

const limitsOf = (limits: object) => ({ operations: { 'text-to-music': { limits } } });

function problemsOf(limits: object): readonly string[] {
  try {
    resolveConfig(limitsOf(limits));
  } catch (error) {
    if (error instanceof ConfigurationError)
      return error.problems.map(({ path, message }) => `${path}: ${message}`);
    throw error;
  }
  return [];
}

describe('operations.*.limits', () => {
  it('are ours where nothing is said', () => {
    const config = resolveConfig({});
    for (const name of OPERATION_NAMES) {
      expect(limitsWith(name, config.operations[name].limits)).toEqual(FIELD_LIMITS[name]);
    }
    expect(preflightRules(config)).toEqual({ limits: FIELD_LIMITS, allowPrivateHosts: false });
  });

  it('change single numbers, and leave the others as they are', () => {
    const said = {
      duration: { max: 600 },
      prompt: false,
      output_format: { values: ['m4a'] },
      segments: { minSpacing: 0.5, labels: ['verse'] },
    };
    const config = resolveConfig(limitsOf(said));
    const { prompt: _lifted, ...ours } = FIELD_LIMITS['text-to-music'];
    expect(preflightRules(config).limits['text-to-music']).toEqual({
      ...ours,
      duration: { kind: 'number', min: 5, max: 600 },
      output_format: { kind: 'choice', values: ['m4a'] },
      segments: { ...ours['segments'], minSpacing: 0.5, labels: ['verse'] },
    });
    expect(preflightRules(config).limits['video-to-music']).toEqual(FIELD_LIMITS['video-to-music']);
  });

  // `dev` and `demo` put a checked configuration through the door a second time.
  it('say the same when they are read again', () => {
    const config = resolveConfig(limitsOf({ prompt: false, duration: { max: 600 } }));
    expect(resolveConfig({ ...config, storage: {} }).operations).toEqual(config.operations);
  });

  it.each<[object, string]>([
    [{ promt: false }, 'operations.text-to-music.limits.promt: unknown setting. Did you mean "prompt"?'],
    [{ stems: false }, 'operations.text-to-music.limits.stems: unknown setting.'],
    [{ prompt: true }, 'operations.text-to-music.limits.prompt: expected an object, got true.'],
    [{ prompt: null }, 'operations.text-to-music.limits.prompt: expected an object, got null.'],
    [{ prompt: { max: 5 } }, 'operations.text-to-music.limits.prompt.max: unknown setting.'],
    [
      { prompt: { maxLength: 0 } },
      'operations.text-to-music.limits.prompt.maxLength: expected a whole number',
    ],
    [{ duration: { max: '600' } }, 'operations.text-to-music.limits.duration.max: expected a number'],
    [{ duration: { max: 4 } }, 'operations.text-to-music.limits.duration.max: expected no less than min (5,'],
    [
      { output_format: { values: [] } },
      'operations.text-to-music.limits.output_format.values: expected a list',
    ],
    [
      { output_format: { values: 'wav' } },
      'operations.text-to-music.limits.output_format.values: expected a',
    ],
    [
      { output_format: { values: [7] } },
      'operations.text-to-music.limits.output_format.values: expected a list',
    ],
    [{ segments: { order: 'starts' } }, 'operations.text-to-music.limits.segments.order: unknown setting.'],
  ])('are refused by their path: %j', (limits, problem) => {
    expect(problemsOf(limits)).toEqual([expect.stringContaining(problem)]);
  });
});
