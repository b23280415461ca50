"""Writes weir.py, a client of weir's HTTP API, from the API's description:

    python3 generate.py <../../docs/openapi.json >weir.new && mv weir.new weir.py

The beginning of weir.py stays, up to the line END. The description of a running weir is at http://weir/openapi.json on
its control socket.
"""

import json
import keyword
import pathlib
import sys
import textwrap

END = "    # generate.py writes what follows."

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
        notes[-1] += f" Returns {name_of(answer['schema'])}."
    doc = [line for note in notes for line in textwrap.wrap(" ".join(note.split()), 100)]
    for name in of["path"]:
        path = path.replace("{%s}" % name, "{quote(%s, safe='')}" % name)
    pairs = ", ".join(f'"{name}": {argument(name)}' for name in of["query"])
    passes = [f'"{verb.upper()}"', f'{"f" if of["path"] else ""}"{path}"', "{%s}" % pairs]
    passes += [f'"{sends}"', "body"] if sends else []
    yield ""
    yield f"    def {operation['operationId']}({', '.join(takes)}):"
    yield '        """' + "\n        ".join(doc) + '"""'
    yield f"        return self.{STREAMS.get(got, '_ask')}({', '.join(passes)})"


def main():
    client = pathlib.Path(__file__).with_name("weir.py").read_text()
    lines = [client[: client.index(END)] + END]
    for path, operations in json.load(sys.stdin)["paths"].items():
        for verb, operation in operations.items():
            lines += method(verb, path, operation)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
