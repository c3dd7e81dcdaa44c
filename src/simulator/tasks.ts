import type { Account, Generation } from './accounts.ts';
import { type Answer, json } from './answers.ts';
import type { AudioFile } from './audio/audio-file.ts';
import type { Order } from './form-rules.ts';
import type { SimulatedOperation } from './operations.ts';

/** One generation that was paid for. What it reports follows from the clock alone; nothing ticks. */
export interface Task extends Generation {
  readonly id: string;
  readonly operation: SimulatedOperation;
  readonly account: Account;
  readonly order: Order;
  readonly cost: number;
  readonly files: readonly TaskFile[];
  /** Fails with this code at its end. */
  readonly failure?: string;
  /** When the money of a failed task is back; some time after its failure shows. */
  readonly refundsAt?: number;
}

export interface TaskFile {
  /** The last part of its path, unique within the task. */
  readonly name: string;
  readonly audio: AudioFile;
}

export type TaskStatus = 'processing' | 'succeeded' | 'failed';

const DOLLARS_PER_SECOND = 0.002;
/** Sent with every result, since an official client may have ordered another format. */
export const ALWAYS_WAV = 'simulated audio, always WAV whatever format was ordered';

export function costOf(order: Order): number {
  return Math.round(order.durationSeconds * order.variants * DOLLARS_PER_SECOND * 10_000) / 10_000;
}

export function statusOf(task: Task, now: number): TaskStatus {
  if (task.endsAt > now) return 'processing';
  return task.failure === undefined ? 'succeeded' : 'failed';
}

/** `GET /v1/tasks/{id}`. `sign` makes a fresh URL at every call. */
export function describeTask(task: Task, now: number, sign: (task: Task, file: TaskFile) => string): Answer {
  const { order, operation } = task;
  const status = statusOf(task, now);
  const common = {
    task_id: task.id,
    type: operation.type,
    status,
    duration_seconds: order.durationSeconds,
    cost: task.cost,
    ...(order.variants > 1 ? { variants_num: order.variants } : {}),
  };
  if (status === 'processing') return json(200, common);
  if (status === 'failed') {
    const message = 'Generation failed. The charge is refunded automatically.';
    const refunded = task.refundsAt !== undefined && task.refundsAt <= now;
    return json(200, { ...common, error: { code: task.failure, message }, refunded });
  }
  const note = { simulator_note: `${ALWAYS_WAV} (${order.format})` };
  return json(200, { ...common, ...note, ...resultOf(task, (file) => sign(task, file)) });
}

function resultOf(task: Task, urlOf: (file: TaskFile) => string): object {
  const media = task.files.map((file, index) => ({
    stream_index: index,
    url: urlOf(file),
    content_type: 'audio/wav',
    file_size: file.audio.byteLength,
    sample_rate: file.audio.sampleRate,
    channels: 1,
  }));
  const [first] = media;
  if (task.operation.result === 'music') {
    return {
      audio: media,
      title: titleOf(task.order.prompt),
      ...(task.order.stems ? { stems_error: 'Stem separation is not simulated' } : {}),
    };
  }
  if (task.operation.result === 'effect') {
    return { audio: { url: first?.url, content_type: first?.content_type, file_size: first?.file_size } };
  }
  return {
    output_url: first?.url,
    output_type: 'audio',
    output_bytes: first?.file_size,
    content_type: first?.content_type,
    ...(media.length > 1
      ? { outputs: media.map(({ stream_index, url }) => ({ variant_index: stream_index, output_url: url })) }
      : {}),
  };
}

/** A title from the prompt's first words, without what is meant for the simulator. */
export function titleOf(prompt: string): { title: string; summary: string; display_tags: string[] } {
  const words = prompt.replaceAll(/\[simulate\b[^\]]*\]/gi, ' ').match(/[\p{L}\p{N}'’-]+/gu) ?? [];
  const title = words
    .slice(0, 4)
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join(' ');
  return {
    title: title === '' ? 'Untitled' : title,
    summary: 'A piece composed by the simulator.',
    display_tags: words.slice(0, 3).map((word) => word.toLowerCase()),
  };
}
