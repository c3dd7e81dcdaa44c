import { createRequire } from 'node:module';
import type { Readable } from 'node:stream';
import { OnetakeError } from '../core/errors.ts';
import { plainErrorCode } from './store-result.ts';
import { fileMissing, requireLocation } from './stored-file.ts';

// What reads a bucket; an app that only opens files loads no more than this.

const CONNECT_TIMEOUT_MS = 10_000;
/** Of one request, with what it sends, to its answer: 8 MiB at 70 kB/s. */
const REQUEST_TIMEOUT_MS = 120_000;

export interface S3Location {
  readonly bucket: string;
  /** Begins every key; ends with a slash, or is empty. */
  readonly prefix: string;
  /** Null: that of AWS. */
  readonly endpoint: string | null;
  /** Null: what the SDK finds, in AWS_REGION for example. */
  readonly region: string | null;
  /** The bucket in the path, not in the host name. */
  readonly forcePathStyle: boolean;
}

type Command<Input> = new (input: Input) => object;

interface S3Answer {
  readonly ContentLength?: number;
  readonly Body?: unknown;
  readonly Uploads?: readonly { readonly Key?: string; readonly UploadId?: string }[];
}

interface S3Client {
  send(command: object): Promise<S3Answer>;
  destroy(): void;
}

/** What we need of @aws-sdk/client-s3, so that our types don't need it: it is optional. */
interface S3Module {
  readonly S3Client: new (options: object) => S3Client;
  readonly HeadBucketCommand: Command<{ readonly Bucket: string }>;
  readonly HeadObjectCommand: Command<ObjectName>;
  readonly GetObjectCommand: Command<ObjectName>;
  readonly DeleteObjectCommand: Command<ObjectName>;
  readonly ListMultipartUploadsCommand: Command<{ readonly Bucket: string; readonly Prefix: string }>;
  readonly AbortMultipartUploadCommand: Command<ObjectName & { readonly UploadId: string }>;
}

/** And of @aws-sdk/lib-storage. */
interface LibStorageModule {
  readonly Upload: new (options: object) => { done(): Promise<unknown>; abort(): Promise<void> };
}

export interface Sdk {
  readonly s3: S3Module;
  readonly lib: LibStorageModule;
  readonly client: S3Client;
}

export type ObjectName = { readonly Bucket: string; readonly Key: string };

export interface S3Objects {
  /** Loads the SDK at its first call; throws `aws_sdk_missing`. */
  sdk(): Sdk;
  nameOf(location: string): ObjectName;
  /** Undefined when there is no such object; rejects when the bucket can't tell. */
  lengthOf(location: string): Promise<number | undefined>;
  open(location: string, bytes: number | null): Promise<ReadableStream<Uint8Array>>;
  remove(location: string): Promise<void>;
  close(): void;
}

export function createS3Objects(at: S3Location): S3Objects {
  let loaded: Sdk | undefined;
  const sdk = (): Sdk => {
    loaded ??= loadSdk(at);
    return loaded;
  };
  const nameOf = (location: string) => ({ Bucket: at.bucket, Key: `${at.prefix}${location}` });
  const lengthOf = async (location: string): Promise<number | undefined> => {
    requireLocation(location);
    const { s3, client } = sdk();
    try {
      return (await client.send(new s3.HeadObjectCommand(nameOf(location)))).ContentLength;
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  };
  return {
    sdk,
    nameOf,
    lengthOf,
    async open(location, bytes) {
      requireLocation(location);
      sdk();
      const found = await lengthOf(location).catch((error: unknown) => {
        throw unavailable(error);
      });
      if (found === undefined || (bytes !== null && found !== bytes)) throw fileMissing();
      return ReadableStream.from(readObject(sdk(), nameOf(location)));
    },
    async remove(location) {
      requireLocation(location);
      const { s3, client } = sdk();
      await client.send(new s3.DeleteObjectCommand(nameOf(location)));
    },
    close: () => loaded?.client.destroy(),
  };
}

async function* readObject({ s3, client }: Sdk, object: ObjectName): AsyncGenerator<Uint8Array, void> {
  let body: Readable;
  try {
    const { Body } = await client.send(new s3.GetObjectCommand(object));
    body = Body as Readable;
  } catch (error) {
    throw isMissing(error) ? fileMissing() : unavailable(error);
  }
  try {
    yield* body as AsyncIterable<Uint8Array>;
  } finally {
    body.destroy();
  }
}

function isMissing(error: unknown): boolean {
  return (error as { $metadata?: { httpStatusCode?: number } }).$metadata?.httpStatusCode === 404;
}

/** Only the code: the messages of the SDK hold bucket, key and host. */
function unavailable(error: unknown): OnetakeError {
  return new OnetakeError(
    'storage_unavailable',
    `The bucket of storage.s3 can't be read (${plainErrorCode(error) ?? 'unknown'}).`,
    { hint: 'See that this process has the credentials and the network that the pollers have.' },
  );
}

/** Only now, and in a way that a bundler doesn't follow: an app without a bucket has no such package. */
function loadSdk(at: S3Location): Sdk {
  const load = createRequire(import.meta.url);
  let s3: S3Module;
  let lib: LibStorageModule;
  try {
    s3 = load('@aws-sdk/client-s3') as S3Module;
    lib = load('@aws-sdk/lib-storage') as LibStorageModule;
  } catch {
    throw new OnetakeError('aws_sdk_missing', 'The packages that storage.s3 needs are not installed.', {
      hint: 'npm i @aws-sdk/client-s3 @aws-sdk/lib-storage',
    });
  }
  const client = new s3.S3Client({
    ...(at.region === null ? {} : { region: at.region }),
    ...(at.endpoint === null ? {} : { endpoint: at.endpoint }),
    forcePathStyle: at.forcePathStyle,
    // Stores that only speak like S3 don't all know the newer checksums; length and digest are held to by us.
    requestChecksumCalculation: 'WHEN_REQUIRED',
    responseChecksumValidation: 'WHEN_REQUIRED',
    requestHandler: {
      connectionTimeout: CONNECT_TIMEOUT_MS,
      requestTimeout: REQUEST_TIMEOUT_MS,
      // By default it is written to the console, and waited on.
      throwOnRequestTimeout: true,
    },
  });
  return { s3, lib, client };
}
