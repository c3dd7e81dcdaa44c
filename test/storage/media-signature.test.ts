import { describe, expect, it } from 'vitest';
import { bareContentType, detectMediaFormat, settleContentType } from '../../src/storage/media-signature.ts';

const bytes = (text: string) => Buffer.from(text, 'latin1');

describe('detectMediaFormat', () => {
  it.each([
    ['wav', 'RIFF\x24\x00\x00\x00WAVEfmt '],
    ['wav', 'RF64\xff\xff\xff\xffWAVEds64'],
    ['aiff', 'FORM\x00\x00\x10\x00AIFFCOMM'],
    ['mp3', 'ID3\x04\x00\x00\x00\x00\x00\x23TSSE'],
    ['mp3', '\xff\xfb\x90\x64\x00\x00\x00\x00'],
    ['mp3', '\xff\xf3\x48\xc4\x00\x00\x00\x00'],
    ['m4a', '\x00\x00\x00\x1cftypM4A \x00\x00\x02\x00'],
    ['m4a', '\x00\x00\x00\x1cftypisom\x00\x00\x02\x00'],
    ['flac', 'fLaC\x00\x00\x00\x22'],
    ['ogg', 'OggS\x00\x02\x00\x00'],
    ['aac', '\xff\xf1\x50\x80\x2e\x7f\xfc'],
    ['aac', '\xff\xf9\x50\x80\x2e\x7f\xfc'],
    ['webm', '\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\xf3\x81\x08B\x82\x84webm'],
  ])('knows %s', (format, head) => {
    expect(detectMediaFormat(bytes(head), null)).toBe(format);
  });

  it('takes an MP4 for video only where video was announced', () => {
    const head = bytes('\x00\x00\x00\x1cftypisom\x00\x00\x02\x00');
    expect(detectMediaFormat(head, 'video/mp4')).toBe('mp4');
    expect(detectMediaFormat(head, 'audio/mp4')).toBe('m4a');
  });

  it.each([
    ['an HTML page', '<!DOCTYPE html><html><body>Sign in'],
    ['an HTML page behind a byte order mark', '\xef\xbb\xbf\n  <html>'],
    ['an XML error', '<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied'],
    ['a JSON answer', '{"detail":"not found"}'],
    ['text', 'upstream connect error'],
    ['nothing', ''],
    ['one byte of sync', '\xff'],
    ['two bytes of sync', '\xff\xfb'],
    ['UTF-16 text', '\xff\xfe<\x00h\x00t\x00'],
    ['a RIFF that is a picture', 'RIFF\x24\x00\x00\x00WEBPVP8 '],
    ['a sync with a reserved version', '\xff\xeb\x90\x64'],
    ['a sync with a bad bitrate', '\xff\xfb\xf0\x64'],
    ['a sync with a reserved sample rate', '\xff\xfb\x9c\x64'],
    ['an ADTS sync with a reserved sample rate', '\xff\xf1\x7c\x80'],
    ['a Matroska file that is no WebM', '\x1aE\xdf\xa3\x9fB\x82\x88matroska'],
  ])('refuses %s', (_what, head) => {
    expect(detectMediaFormat(bytes(head), 'audio/mpeg')).toBeNull();
  });
});

describe('bareContentType', () => {
  it.each([
    ['Audio/MPEG; charset=utf-8', 'audio/mpeg'],
    [' audio/wav ', 'audio/wav'],
    ['application/octet-stream', null],
    ['binary/octet-stream', null],
    ['', null],
    ['audio', null],
    ['audio/"x"\u0000', null],
    [null, null],
    [undefined, null],
  ])('reads %j as %j', (value, bare) => {
    expect(bareContentType(value)).toBe(bare);
  });
});

describe('settleContentType', () => {
  it('keeps an announced type that fits', () => {
    expect(settleContentType('wav', 'audio/x-wav')).toEqual({ contentType: 'audio/x-wav', differs: false });
  });

  it('names what the bytes are when another format was announced', () => {
    expect(settleContentType('wav', 'audio/mpeg')).toEqual({ contentType: 'audio/wav', differs: true });
  });

  it('finds nothing amiss when nothing was announced', () => {
    expect(settleContentType('m4a', null)).toEqual({ contentType: 'audio/mp4', differs: false });
  });
});
