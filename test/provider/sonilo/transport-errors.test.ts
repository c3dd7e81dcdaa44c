import { errors } from 'undici';
import { expect, test } from 'vitest';
import {
  isOwnDoing,
  isUnsentByCode,
  transportErrorCode,
} from '../../../src/provider/sonilo/transport-errors.ts';

const coded = (code: string, more: object = {}) => Object.assign(new Error('x'), { code, ...more });
const refused = () => coded('ECONNREFUSED', { syscall: 'connect' });
const several = (members: unknown[], code = 'ECONNREFUSED') =>
  Object.assign(new AggregateError(members), { code });

test.each([
  ['ENOTFOUND', coded('ENOTFOUND', { syscall: 'getaddrinfo' })],
  ['EAI_AGAIN', coded('EAI_AGAIN')],
  ['a refused connection', refused()],
  ['a connect timeout', new errors.ConnectTimeoutError()],
  ['our connect deadline', coded('connect_deadline')],
  ['an expired certificate', coded('CERT_HAS_EXPIRED')],
  ['an unknown issuer', coded('UNABLE_TO_GET_ISSUER_CERT_LOCALLY')],
  ['a chain signed by itself', coded('SELF_SIGNED_CERT_IN_CHAIN')],
  ['an unverified leaf', coded('UNABLE_TO_VERIFY_LEAF_SIGNATURE')],
  ['addresses that all refused', several([refused(), refused()])],
])('%s proves that nothing was sent', (_title, error) => {
  expect(isUnsentByCode(error)).toBe(true);
  expect(isOwnDoing(error)).toBe(false);
});

test.each([
  ['an invalid argument', new errors.InvalidArgumentError('x'), true],
  ['a body of another length', new errors.RequestContentLengthMismatchError(), false],
  ['a client that is closed', new errors.ClientClosedError(), false],
  ['a second connection', coded('SECOND_CONNECTION_REFUSED'), false],
])('%s is our own doing, where nothing was sent', (_title, error, isProof) => {
  expect(isOwnDoing(error)).toBe(true);
  expect(isUnsentByCode(error)).toBe(isProof);
});

test.each<[string, unknown]>([
  ['ECONNREFUSED without the connect', coded('ECONNREFUSED', { syscall: 'read' })],
  ['ECONNRESET', coded('ECONNRESET', { syscall: 'connect' })],
  ['EPIPE', coded('EPIPE')],
  ['ETIMEDOUT', coded('ETIMEDOUT', { syscall: 'connect' })],
  ['EHOSTUNREACH', coded('EHOSTUNREACH', { syscall: 'connect' })],
  ['a socket error', new errors.SocketError('x')],
  ['a destroyed client', new errors.ClientDestroyedError()],
  ['a headers timeout', new errors.HeadersTimeoutError()],
  ['a body timeout', new errors.BodyTimeoutError()],
  ['an abort', new errors.RequestAbortedError()],
  ['an internal teardown', new errors.InformationalError('x')],
  ['an alert after the handshake', coded('ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED')],
  ['a DOM timeout', new DOMException('x', 'TimeoutError')],
  ['an error without a code', new Error('ENOTFOUND')],
  ['a code on something else', { code: 'ENOTFOUND' }],
  ['nothing', undefined],
  ['addresses of which one was reset', several([refused(), coded('ECONNRESET')])],
  ['no address at all', several([])],
  ['a nested aggregate', several([several([refused()])])],
])('%s proves nothing', (_title, error) => {
  expect(isUnsentByCode(error)).toBe(false);
});

test.each<[unknown, string | null]>([
  [coded('ECONNRESET'), 'ECONNRESET'],
  [new DOMException('x', 'TimeoutError'), 'TimeoutError'],
  [coded('sk_live and a prompt'), 'Error'],
  [Object.assign(new Error('x'), { name: 'with a prompt' }), null],
  ['ECONNRESET', null],
])('the code of %o is %s', (error, code) => {
  expect(transportErrorCode(error)).toBe(code);
});
