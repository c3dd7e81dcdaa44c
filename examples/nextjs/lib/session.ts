/** Put your own sign-in here. A generation costs money: no route may enqueue for somebody it doesn't know. */
export async function userIdOf(request: Request): Promise<string | undefined> {
  return request.headers.get('x-user-id') ?? undefined;
}
