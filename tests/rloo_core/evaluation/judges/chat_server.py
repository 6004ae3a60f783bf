"""A real HTTP server on loopback that speaks the chat-completions interface, and misbehaves on demand."""

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OK = "ok"
PROMPT_TOKENS, COMPLETION_TOKENS = 100, 7


class ChatServer:
    """Answers "Preferred: A" where the first text is the longer one, after the misbehaviours planned for a question.

    Args:
        plan: From a word that the question's user message holds to what is answered, attempt by attempt; then OK.
        hold_after: After that many good answers, every further request hangs.
    """

    def __init__(self, plan=None, hold_after=None, reply=None):
        self.plan = {word: list(steps) for word, steps in (plan or {}).items()}
        self.hold_after = hold_after
        self.reply = reply or longer_wins
        self.requests: list[dict] = []
        self.keys: list[str] = []
        self.answered = Counter()  # good answers by user message
        self.most_at_once = self._now = 0
        self.released = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self):
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.handle(self, body)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        return self

    def __exit__(self, *error):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def handle(self, handler, body):
        question = body["messages"][-1]["content"]
        with self._lock:
            self.requests.append(body)
            self.keys.append(handler.headers["Authorization"])
            steps = next((steps for word, steps in self.plan.items() if word in question and steps), None)
            step = steps.pop(0) if steps else OK
            counts = step != "slow"  # the client gives that one up long before it ends
            self._now += counts
            self.most_at_once = max(self.most_at_once, self._now)
            holds = self.hold_after is not None and sum(self.answered.values()) >= self.hold_after
            if step == OK and not holds:
                self.answered[question] += 1
        if holds:
            self.released.wait(60)
        time.sleep(0.002)
        try:
            self.answer(handler, step, question)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has gone: a time-out, or it was killed
        finally:
            with self._lock:
                self._now -= counts

    def answer(self, handler, step, question):
        if step == "busy":
            send(handler, 429, {"error": {"message": "slow down"}}, {"Retry-After": "0.01"})
        elif step == "error":
            send(handler, 500, {"error": {"message": "oops"}})
        elif step == "slow":
            self.released.wait(60)
            send(handler, 200, completion("Preferred: A"))
        elif step == "no json":
            raw(handler, 200, b'{"id": "x", "choices": [{"mess', "application/json")
        elif step == "html":
            raw(handler, 200, b"<html>gateway</html>", "text/html")
        elif step == "empty":
            send(handler, 200, {"id": "x", "object": "chat.completion", "choices": []})
        elif step == "cut connection":
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            handler.wfile.write(b'{"id"')
            handler.close_connection = True
        elif step == "wrong key":
            key = handler.headers["Authorization"].removeprefix("Bearer ")
            send(handler, 401, {"error": {"message": f"Incorrect API key provided: {key}"}})
        elif step == "filtered":
            send(handler, 400, {"error": {"message": "filtered", "code": "content_filter"}})
        elif step == OK:
            send(handler, 200, completion(self.reply(question)))
        else:
            send(handler, 200, completion(step))  # any other text is the reply itself


def longer_wins(question):
    first, second = (question.split(f"<summary_{x}>")[1].split("</summary")[0].strip() for x in "ab")
    label = "tie" if len(first) == len(second) else "A" if len(first) > len(second) else "B"
    return f"One is longer than the other.\nPreferred: {label}"


def completion(text):
    refusal = text.removeprefix("refusal: ") if text.startswith("refusal: ") else None
    message = {"role": "assistant", "content": None if refusal else text, "refusal": refusal}
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": COMPLETION_TOKENS,
        "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
    }
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "judge",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }


def send(handler, status, content, headers=None):
    raw(handler, status, json.dumps(content).encode(), "application/json", headers)


def raw(handler, status, content, kind, headers=None):
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(content)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)
