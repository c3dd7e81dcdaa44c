import { OnetakeError } from 'onetake';
import { db, onetake, songs } from '@/lib/database';
import { userIdOf } from '@/lib/session';

interface NewSong {
  readonly title: string;
  readonly prompt: string;
  /** Made by the browser once per click, and sent again with every retry of that click. */
  readonly intent: string;
}

/** Writes the app's row and the generation request in one transaction: both, or neither. */
export async function POST(request: Request): Promise<Response> {
  const userId = await userIdOf(request);
  if (userId === undefined) return refusal(401, 'Sign in first.');
  const song = await readSong(request);
  if (song === undefined) return refusal(400, 'Expected { title, prompt, intent }, all texts.');
  try {
    const enqueued = await db.transaction(async (tx) => {
      const result = await onetake.enqueue(
        {
          operation: 'text-to-music',
          fields: { prompt: song.prompt, duration: 30 },
          requestKey: `${userId}/${song.intent}`,
          whenOpen: 'refuse',
        },
        { tx },
      );
      if ('id' in result && result.created) {
        await tx.insert(songs).values({ requestId: result.id, userId, title: song.title });
      }
      return result;
    });
    if ('refused' in enqueued) return refusal(503, 'The music service is recovering. Try again in a minute.');
    return Response.json({ id: enqueued.id, state: enqueued.state }, { status: 202 });
  } catch (error) {
    // Its messages are written for people and hold no prompt, key or URL.
    if (error instanceof OnetakeError && error.code === 'intent_mismatch') return refusal(409, error.message);
    if (error instanceof OnetakeError && error.code === 'invalid_field') return refusal(400, error.message);
    throw error;
  }
}

async function readSong(request: Request): Promise<NewSong | undefined> {
  const body: unknown = await request.json().catch(() => undefined);
  if (typeof body !== 'object' || body === null) return undefined;
  const { title, prompt, intent } = body as Record<string, unknown>;
  const usable = [title, prompt, intent].every((value) => typeof value === 'string' && value !== '');
  return usable ? ({ title, prompt, intent } as NewSong) : undefined;
}

function refusal(status: number, message: string): Response {
  return Response.json({ error: message }, { status });
}
