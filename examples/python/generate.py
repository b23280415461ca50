"""Writes weir.py, a client of weir's HTTP API, from the API's description:

    python3 generate.py <../../docs/openapi.json >weir.py

The description of a running weir is at http://weir/openapi.json on its control socket.
"""

import json
import keyword
import sys
import textwrap

HEAD = '''"""A client of weir's HTTP API: a method for each request. generate.py writes this file.

    import weir

    api = weir.Weir()
    api.put_vif("web0", {"vlan": {"access": 10}}, template="tenant")
    for event in api.events():
        print(event)

It needs Python 3.9 and nothing else. docs/openapi.json describes the types that the methods name.
"""

import contextlib
import http.client
import json
import socket
from urllib.parse import quote, urlencode


class Refused(Exception):
    """weir's refusal: `status`, the reason as `detail`, and advice as `help`, which may be None."""

    def __init__(self, problem):
        self.status = problem["status"]
        self.detail = problem["detail"]
        self.help = problem.get("help")
        super().__init__(f"{self.detail} ({self.help})" if self.help else self.detail)


class _Connection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path, timeout):
        super().__init__("weir", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Weir:
    """A running weir, by its control socket. Each call has a connection of its own."""

    def __init__(self, control="/run/weir/control.sock", timeout=10):
        self.control = control
        self.timeout = timeout

    @contextlib.contextmanager
    def _answer(self, method, path, query, sends, body, timeout):
        said = {name: json.dumps(value) if isinstance(value, bool) else value for name, value in query.items()}
        said = {name: value for name, value in said.items() if value is not None}
        if said:
            path = f"{path}?{urlencode(said)}"
        headers = {"Content-Type": sends} if sends else {}
        if sends == "application/json":
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        with contextlib.closing(_Connection(self.control, timeout)) as connection:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise Refused(json.loads(answer.read()))
            yield answer

    def _ask(self, method, path, query, sends=None, body=None):
        with self._answer(method, path, query, sends, body, self.timeout) as answer:
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return json.loads(text) if is_json else text.decode()

    def _lines(self, method, path, query, sends=None, body=None):
        with self._answer(method, path, query, sends, body, None) as answer:
            for line in answer:
                line = line.decode().strip()
                if line.startswith(("data:", "{")):
                    yield json.loads(line.removeprefix("data:"))

    def _bytes(self, method, path, query, sends=None, body=None):
        with self._answer(method, path, query, sends, body, None) as answer:
            while some := answer.read1(65536):
                yield some
'''

# The method that reads an answer without an end, by its type.
STREAMS = {
    "text/event-stream": "_lines",
    "application/x-ndjson": "_lines",
    "application/x-pcapng": "_bytes",
}


def name_of(schema):
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    inner = name_of(schema["items"]) if "items" in schema else None
    return f"a list of {inner}" if inner else None


def argument(name):
    """The name in Python: a word of the language gets an underscore."""
    return f"{name}_" if keyword.iskeyword(name) else name


def method(verb, path, operation):
    parameters = operation.get("parameters", [])
    of = {kind: [it["name"] for it in parameters if it["in"] == kind] for kind in ("path", "query")}
    sends, sent = next(iter(operation.get("requestBody", {}).get("content", {}).items()), (None, None))
    got, answer = next(iter(operation["responses"]["200"].get("content", {}).items()), (None, {}))
    takes = ["self", *of["path"], *(["body"] if sends else [])]
    takes += ["*", *(f"{argument(name)}=None" for name in of["query"])] if of["query"] else []
    notes = [operation.get("summary") or operation.get("description") or ""]
    notes += [f"`{argument(it['name'])}`: {it['description']}" for it in parameters if it.get("description")]
    if sends:
        kind = name_of(sent.get("schema", {})) if sends == "application/json" else None
        notes.append(f"`body`: {kind or ('text' if sends == 'application/toml' else 'bytes')}.")
    if name_of(answer.get("schema", {})):
        notes.append(f"Returns {name_of(answer['schema'])}.")
    doc = [line for note in notes for line in textwrap.wrap(" ".join(note.split()), 100)]
    for name in of["path"]:
        path = path.replace("{%s}" % name, "{quote(%s, safe='')}" % name)
    pairs = ", ".join(f'"{name}": {argument(name)}' for name in of["query"])
    passes = [f'"{verb.upper()}"', f'{"f" if of["path"] else ""}"{path}"', "{%s}" % pairs]
    passes += [f'"{sends}"', "body"] if sends else []
    yield ""
    yield f"    def {operation['operationId']}({', '.join(takes)}):"
    yield '        """' + "\n        ".join(doc) + ('\n        """' if len(doc) > 1 else '"""')
    yield f"        return self.{STREAMS.get(got, '_ask')}({', '.join(passes)})"


def main():
    lines = [HEAD.rstrip()]
    for path, operations in json.load(sys.stdin)["paths"].items():
        for verb, operation in operations.items():
            lines += method(verb, path, operation)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
