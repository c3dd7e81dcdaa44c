import type { Account, Generation } from './accounts.ts';
import { type Answer, json } from './answers.ts';
import type { AudioContainer, AudioFile } from './audio/audio-file.ts';
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
  readonly variant: number;
  /** Of a stem or a language. */
  readonly label?: string;
  readonly audio: AudioFile;
}

export type TaskStatus = 'processing' | 'succeeded' | 'failed';

const DOLLARS_PER_SECOND = 0.002;
/** Sent with every result, since an official client may have ordered another format. */
export const ALWAYS_WAV = 'simulated: always WAV, or MP4 with sound alone for a video, whatever was ordered';

export function costOf(order: Order): number {
  const times = Math.max(order.variants, order.languages.length);
  return Math.round(order.durationSeconds * times * DOLLARS_PER_SECOND * 10_000) / 10_000;
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
  return json(200, {
    ...common,
    ...(task.files.length > 0 ? note : {}),
    ...resultOf(task, (file) => sign(task, file)),
  });
}

const STEMS = ['drums', 'bass', 'vocals', 'other'];

/** What a task of this order delivers, each with what it is composed from. */
export function filesOf(
  { result }: SimulatedOperation,
  order: Order,
  open: (part: string | number, container: AudioContainer) => AudioFile,
): readonly TaskFile[] {
  if (result === 'analysis') return [];
  if (result === 'languages') {
    return order.languages.map((label) => ({
      name: `${label}.mp4`,
      variant: 0,
      label,
      audio: open(label, 'mp4'),
    }));
  }
  const container = result === 'video' || result === 'film' ? 'mp4' : 'wav';
  const variants = Array.from({ length: order.variants }, (_, variant) => variant);
  const main = variants.map((variant) => ({
    name: `${variant}.${container}`,
    variant,
    audio: open(variant, container),
  }));
  if (!order.stems) return main;
  const stems = variants.flatMap((variant) =>
    STEMS.map((label) => ({
      name: `${variant}-${label}.wav`,
      variant,
      label,
      audio: open(`${variant} ${label}`, 'wav'),
    })),
  );
  return [...main, ...stems];
}

function resultOf(task: Task, urlOf: (file: TaskFile) => string): object {
  const { result } = task.operation;
  const main = task.files.filter(({ label }) => label === undefined);
  const media = main.map((file) => ({
    stream_index: file.variant,
    url: urlOf(file),
    content_type: file.audio.contentType,
    file_size: file.audio.byteLength,
    sample_rate: file.audio.sampleRate,
    channels: 1,
  }));
  const [first] = media;
  const one = { url: first?.url, content_type: first?.content_type, file_size: first?.file_size };
  switch (result) {
    case 'music':
      return {
        audio: media,
        title: titleOf(task.order.prompt),
        ...(task.order.stems ? { stems: stemsOf(task, urlOf) } : {}),
      };
    case 'effect':
      return { audio: one };
    case 'video':
      return media.length === 1 ? { video: one } : { video: one, videos: media };
    case 'languages':
      return { outputs: Object.fromEntries(task.files.map((file) => [file.label, urlOf(file)])) };
    case 'analysis':
      return analysisOf(task);
    case 'sound':
    case 'film':
      return {
        output_url: one.url,
        output_type: result === 'film' ? 'video' : 'audio',
        output_bytes: one.file_size,
        content_type: one.content_type,
        ...(media.length > 1
          ? {
              outputs: media.map(({ stream_index, url }) => ({
                variant_index: stream_index,
                output_url: url,
              })),
            }
          : {}),
      };
  }
}

function stemsOf(task: Task, urlOf: (file: TaskFile) => string): readonly object[] {
  return Array.from({ length: task.order.variants }, (_, variant) => ({
    stream_index: variant,
    ...Object.fromEntries(
      task.files
        .filter((file) => file.label !== undefined && file.variant === variant)
        .map((file) => [file.label, urlOf(file)]),
    ),
  }));
}

function analysisOf({ order }: Task): object {
  const halves = [0, order.durationSeconds / 2];
  return {
    segments: halves.map((start) => ({
      start,
      end: start + order.durationSeconds / 2,
      prompt: 'A quiet scene.',
    })),
    variations: Array.from({ length: order.variants }, (_, variant) => ({
      variant_index: variant,
      prompt: `${titleOf(order.prompt).title}, in ${variant + 1} of ${order.variants} ways.`,
    })),
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
