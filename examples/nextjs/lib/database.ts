import { drizzle } from 'drizzle-orm/node-postgres';
import { pgTable, text, timestamp, uuid } from 'drizzle-orm/pg-core';
import { createClient } from 'onetake';
import pg from 'pg';

export const songs = pgTable('songs', {
  requestId: uuid('request_id').primaryKey(),
  userId: text('user_id').notNull(),
  title: text('title').notNull(),
  createdAt: timestamp('created_at', { withTimezone: true }).notNull().defaultNow(),
});

// The dev server loads this file anew after each change: one pool survives that, instead of one more each time.
const kept = globalThis as { songsPool?: pg.Pool };
kept.songsPool ??= new pg.Pool({ connectionString: process.env.DATABASE_URL });

export const pool = kept.songsPool;
export const db = drizzle(pool);
/** Connects when it is first used, over the app's own pool. */
export const onetake = createClient({ pool });
