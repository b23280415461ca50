"""A client of weir's HTTP API: a method for each request. generate.py writes the methods.

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

    # generate.py writes what follows.

    def metrics(self):
        """The counters in the text format of Prometheus."""
        return self._ask("GET", "/metrics", {})

    def document(self):
        """This document."""
        return self._ask("GET", "/openapi.json", {})

    def addresses(self, *, after=None, limit=None):
        """Stations that the switch knows, and the port behind which each is: a part, as of `/v1/ports`.
        `after`: The last entry of the part before: its name, or `VLAN/MAC` for an address.
        `limit`: Most entries of this part: at most 256, or 4096 addresses. Returns a list of AddressEntry."""
        return self._ask("GET", "/v1/addresses", {"after": after, "limit": limit})

    def capture(self, body):
        """Copies frames as they pass, as pcapng, until the client closes the connection. Traffic is not held
        up. Frames for which the client is too slow are counted in the stream.
        `body`: CaptureRequest."""
        return self._bytes("POST", "/v1/captures", {}, "application/json", body)

    def configuration(self):
        """The configuration file with which weir was started. Returns ConfigurationSource."""
        return self._ask("GET", "/v1/configuration", {})

    def reload(self, body, *, partly=None, unchanged=None):
        """Changes the switch to a configuration. `outcome` tells whether it did.
        `partly`: Changes that are possible are made, although others are not.
        `unchanged`: Makes no change, and refuses a configuration that differs from what runs.
        `body`: text. Returns Reloaded."""
        return self._ask("PUT", "/v1/configuration", {"partly": partly, "unchanged": unchanged}, "application/toml", body)

    def difference(self, body):
        """The changes that a configuration would make. Nothing is changed. Only for users who may write:
        reading a configuration costs as much as its text asks for.
        `body`: text. Returns Difference."""
        return self._ask("POST", "/v1/configuration/difference", {}, "application/toml", body)

    def saved(self, body):
        """A configuration, changed to the running state: its comments and its order stay. Nothing is changed.
        Only for users who may write, as the difference.
        `body`: text. Returns ConfigurationText."""
        return self._ask("POST", "/v1/configuration/saved", {}, "application/toml", body)

    def flush(self, *, of=None):
        """Forgets connections of interfaces in groups. Connections that the rules would let one of their ends
        open go on.
        `of`: The interface, or the network whose interfaces are meant. A name of both stands for the
        interface. Without a name, the connections of all interfaces are meant. Returns Done."""
        return self._ask("DELETE", "/v1/connections", {"of": of})

    def drops(self):
        """Dropped frames, by port and reason."""
        return self._ask("GET", "/v1/drops", {})

    def events(self):
        """The events from now on, as server-sent events. A reader that is too slow loses events, and gets
        their number. Returns Event."""
        return self._lines("GET", "/v1/events", {})

    def remove_group(self, group, *, if_exists=None):
        """Removes a group, unless an interface, a rule or an ID names it.
        `if_exists`: A missing one is no error. Returns Done."""
        return self._ask("DELETE", f"/v1/groups/{quote(group, safe='')}", {"if_exists": if_exists})

    def put_group(self, group, body):
        """Makes a group exist with these rules: adds it, or changes the existing one to exactly what is sent.
        Connections that the new rules forbid end at once.
        `body`: GroupConfig. Returns Done."""
        return self._ask("PUT", f"/v1/groups/{quote(group, safe='')}", {}, "application/json", body)

    def ports(self, *, after=None, limit=None):
        """Ports: interfaces and uplinks, by name. The header `x-total-count` has the number of all. The next
        part is `after` the last port of this one, and an empty part is the end.
        `after`: The last entry of the part before: its name, or `VLAN/MAC` for an address.
        `limit`: Most entries of this part: at most 256, or 4096 addresses. Returns a list of PortStats."""
        return self._ask("GET", "/v1/ports", {"after": after, "limit": limit})

    def port(self, port):
        """One port. Returns PortStats."""
        return self._ask("GET", f"/v1/ports/{quote(port, safe='')}", {})

    def connections(self, port, *, from_=None):
        """Connections of an interface in groups, page by page. A connection that is there for the whole time
        is in one page.
        `from_`: `next` of the page before. Returns ConnectionPage."""
        return self._ask("GET", f"/v1/ports/{quote(port, safe='')}/connections", {"from": from_})

    def filter(self, port):
        """A port's filter rules, with the counts of their matches. Returns a list of RuleStats."""
        return self._ask("GET", f"/v1/ports/{quote(port, safe='')}/filter", {})

    def set_filter(self, port, body):
        """Replaces all filter rules of an interface or an uplink at once.
        `body`: a list of FilterRule. Returns Done."""
        return self._ask("PUT", f"/v1/ports/{quote(port, safe='')}/filter", {}, "application/json", body)

    def policies(self, port):
        """The decisions of a port's policies, and the reasons. The port `placement` stands for the placement
        of workers, unless a port has this name. Returns Explanation."""
        return self._ask("GET", f"/v1/ports/{quote(port, safe='')}/policies", {})

    def queues(self, port):
        """A port's queue pairs. Returns a list of QueuePairStats."""
        return self._ask("GET", f"/v1/ports/{quote(port, safe='')}/queues", {})

    def trace(self, port, body):
        """Predicts the way of a frame that the port sends. Nothing is sent.
        `body`: bytes. Returns Trace."""
        return self._ask("POST", f"/v1/ports/{quote(port, safe='')}/trace", {}, "application/octet-stream", body)

    def trace_live(self, port, body):
        """Follows the next frames that the port sends, with the time of each stage: each is a line of JSON.
        Traffic is not held up. Ends after the requested number of frames, or when the client closes the
        connection.
        `body`: FollowRequest. Returns FollowedFrame."""
        return self._lines("POST", f"/v1/ports/{quote(port, safe='')}/trace/live", {}, "application/json", body)

    def stages(self, body):
        """Begins or ends the measurement of the costs of a packet's stages.
        `body`: Stages. Returns Done."""
        return self._ask("PUT", "/v1/stages", {}, "application/json", body)

    def switch(self):
        """The whole switch: workers, limits, and every port's counters. Returns SwitchStats."""
        return self._ask("GET", "/v1/switch", {})

    def vif_of_template(self, template, vif):
        """The interface that a template makes, with a default socket. Nothing is added: send it, with changes,
        to `/v1/vifs`. Returns VifConfig."""
        return self._ask("GET", f"/v1/templates/{quote(template, safe='')}/vifs/{quote(vif, safe='')}", {})

    def upgrade(self):
        """Replaces this weir with the program that is now installed. This weir then ends. Returns Done."""
        return self._ask("POST", "/v1/upgrade", {})

    def vifs(self, *, after=None, limit=None):
        """Interfaces with their configurations: a part, as of `/v1/ports`.
        `after`: The last entry of the part before: its name, or `VLAN/MAC` for an address.
        `limit`: Most entries of this part: at most 256, or 4096 addresses. Returns a list of VifStatus."""
        return self._ask("GET", "/v1/vifs", {"after": after, "limit": limit})

    def add_vif(self, body, *, template=None):
        """Adds an interface.
        `template`: The template of the keys that the body leaves out. Without a template the body has all
        keys.
        `body`: VifConfig. Returns Done."""
        return self._ask("POST", "/v1/vifs", {"template": template}, "application/json", body)

    def remove_vif(self, vif, *, if_exists=None):
        """Removes an interface; its guest is disconnected.
        `if_exists`: A missing one is no error. Returns Done."""
        return self._ask("DELETE", f"/v1/vifs/{quote(vif, safe='')}", {"if_exists": if_exists})

    def vif(self, vif):
        """One interface: each of its settings, and the source of each. Returns VifShown."""
        return self._ask("GET", f"/v1/vifs/{quote(vif, safe='')}", {})

    def change_vif(self, vif, body):
        """Changes an interface in use. Settings that are not named stay as they are.
        `body`: VifChanges. Returns Done."""
        return self._ask("PATCH", f"/v1/vifs/{quote(vif, safe='')}", {}, "application/json", body)

    def put_vif(self, vif, body, *, template=None):
        """Makes an interface have these settings: adds it, or changes the existing one to exactly the settings
        sent. Nothing changes if a key that differs cannot change under traffic.
        `template`: The template of the keys that the body leaves out. Without a template the body has all
        keys.
        `body`: VifConfig. Returns Put."""
        return self._ask("PUT", f"/v1/vifs/{quote(vif, safe='')}", {"template": template}, "application/json", body)
