import { type Answer, refusal } from './answers.ts';
import { CHUNK_BYTES } from './audio/audio-file.ts';
import { type Task, titleOf } from './tasks.ts';

/**
 * The NDJSON answer of a music operation without `mode=async`: title, audio, cost, complete.
 * It has no task: when it breaks, nothing can be fetched again.
 */
export function streamAnswer(generation: Task, runTimeMs: number): Answer {
  const [file] = generation.files;
  if (file === undefined) return refusal(500, 'internal_error', 'Nothing to stream');
  const pieces = Math.ceil(file.audio.byteLength / CHUNK_BYTES);
  const count = pieces + 3;
  return {
    status: 200,
    headers: { 'content-type': 'application/x-ndjson', 'x-simulator-note': 'always WAV' },
    body: { pieces: streamLines(generation, pieces), count, intervalMs: runTimeMs / count },
  };
}

function* streamLines(generation: Task, pieces: number): Generator<Buffer> {
  yield line({ type: 'title', ...titleOf(generation.order.prompt) });
  for (let piece = 0; piece < pieces; piece += 1) {
    if (generation.failure !== undefined && piece >= pieces / 2) {
      yield line({ type: 'error', code: generation.failure, message: 'Generation failed' });
      return;
    }
    const data = generation.files[0]?.audio.read(piece * CHUNK_BYTES, (piece + 1) * CHUNK_BYTES);
    yield line({ type: 'audio_chunk', stream_index: 0, num_streams: 1, data: data?.toString('base64') });
  }
  const cost = String(generation.cost);
  yield line({
    type: 'cost',
    billing_rate_per_sec: String(generation.cost / generation.order.durationSeconds),
    billing_before_discount: cost,
    billing_after_discount: cost,
    discount_factor: '1',
  });
  yield line({ type: 'complete' });
}

function line(event: object): Buffer {
  return Buffer.from(`${JSON.stringify(event)}\n`);
}
