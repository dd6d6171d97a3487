// Owns how many of a conversation's turns fit the model's context. Knows nothing of how they are shown.

// An answer is left at most this part of the context: with more, too little would be remembered.
const ANSWER_SHARE = 4;
// Tokens that a chat template may put around a message.
const AROUND_MESSAGE = 64;

/** The most tokens that a text can become: no token is less than a byte. */
const mostTokens = (text) => new TextEncoder().encode(text).length + AROUND_MESSAGE;

/**
 * How many of the oldest turns have to be dropped, so that the question and an answer to it fit; null where the question
 * does not fit even alone. Without turns before it the answer may be left less.
 *
 * `limit` is the model's context, `used` are the tokens of all turns as the service counted them with the last answer
 * (undefined where it did not), and `count(dropped)` asks it for those of the prompt without the oldest turns.
 */
export async function turnsToDrop({ numTurns, question, maxTokens, limit, used, count }) {
  if (!limit || !numTurns) return 0;
  const forAnswer = Math.max(1, Math.min(maxTokens ?? limit, Math.floor(limit / ANSWER_SHARE)));
  if (used !== undefined && used + mostTokens(question) + forAnswer <= limit) return 0;
  const fits = async (dropped) => dropped === numTurns || (await count(dropped)) + forAnswer <= limit;
  if (await fits(0)) return 0;
  let [low, high] = [1, numTurns];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await fits(middle)) high = middle;
    else low = middle + 1;
  }
  return low < numTurns || (await count(numTurns)) < limit ? low : null;
}
