// Asks the server. The cookie is half of the session, the proof that is kept here the other half.

const KEPT = "omlx-proof";
const HEADER = "X-Omlx-Session";
const API = "/admin/api";
const SESSION = "/admin/session";

let proof = null;
let onSignedOut = () => {};

export class ApiError extends Error {
  constructor(status, message, code, param) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

function keep(value) {
  proof = value;
  try {
    if (value === null) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, value);
  } catch {
    // Storage is off: the session ends with this page.
  }
}

function kept() {
  try {
    return localStorage.getItem(KEPT) ?? proof;
  } catch {
    return proof;
  }
}

export function whenSignedOut(handler) {
  onSignedOut = handler;
}

async function send(method, path, body) {
  const headers = {};
  const half = kept();
  if (half !== null) headers[HEADER] = half;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
    redirect: "error",
  });
  let answer = null;
  try {
    answer = await response.json();
  } catch {
    // Not from this server, or cut off.
  }
  if (response.ok && answer !== null) return answer;
  const error = answer?.error ?? {};
  throw new ApiError(response.status, error.message ?? String(response.status), error.code, error.param);
}

export async function api(method, path, body) {
  try {
    return await send(method, API + path, body);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      keep(null);
      onSignedOut();
    }
    throw error;
  }
}

export function session() {
  return send("GET", SESSION);
}

export async function signIn(key) {
  keep((await send("POST", SESSION, { key })).proof);
}

export async function signOut() {
  try {
    await send("DELETE", SESSION);
  } finally {
    keep(null);
  }
}

// Calls `work` again and again while the page is seen, never twice at a time; returns what ends it.
export function poll(work, everyMs, onError) {
  let timer = null;
  let isOver = false;
  let isRunning = false;
  const turn = async () => {
    timer = null;
    if (isOver || isRunning || document.hidden) return;
    isRunning = true;
    try {
      await work();
      if (!isOver) onError(null);
    } catch (error) {
      if (!isOver) onError(error);
    } finally {
      isRunning = false;
      if (!isOver && timer === null) timer = setTimeout(turn, everyMs);
    }
  };
  const again = () => {
    if (document.hidden) return;
    if (timer !== null) clearTimeout(timer);
    turn();
  };
  document.addEventListener("visibilitychange", again);
  turn();
  return {
    now: again,
    stop() {
      isOver = true;
      if (timer !== null) clearTimeout(timer);
      document.removeEventListener("visibilitychange", again);
    },
  };
}
