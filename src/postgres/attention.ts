/**
 * Ends what asked for a person's eyes, as a move of the request does; but money that was paid twice stays
 * paid, however the request goes on. For the SET list of an update of generation_requests.
 */
export const END_ATTENTION = `attention = onetake.lasting_attention(attention),
  attention_since = case when onetake.lasting_attention(attention) is not null then attention_since end`;
