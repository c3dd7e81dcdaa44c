import { and, eq } from 'drizzle-orm';
import { db, onetake, songs } from '@/lib/database';
import { userIdOf } from '@/lib/session';

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** What became of one generation. Ask again while `done` is false. */
export async function GET(
  request: Request,
  { params }: { params: Promise<{ id: string }> },
): Promise<Response> {
  const userId = await userIdOf(request);
  const { id } = await params;
  const song = userId !== undefined && UUID.test(id) ? await findSong(id, userId) : undefined;
  const generation = song === undefined ? undefined : await onetake.get(id);
  if (song === undefined || generation === undefined) {
    return Response.json({ error: 'There is no such song.' }, { status: 404 });
  }
  const { state, files } = generation;
  return Response.json({
    id,
    title: song.title,
    // Frozen until an operator has asked the provider: for the user that is still "being made".
    state: state === 'ambiguous' ? 'accepted' : state,
    done: generation.settledAt !== null,
    // Never `location`: without storage it is the provider's own, temporary URL.
    files: files.map(({ index, contentType, bytes }) => ({ index, contentType, bytes })),
  });
}

async function findSong(requestId: string, userId: string): Promise<typeof songs.$inferSelect | undefined> {
  const found = await db
    .select()
    .from(songs)
    .where(and(eq(songs.requestId, requestId), eq(songs.userId, userId)));
  return found[0];
}
