#!/usr/bin/python3
"""Starts the machines of Proxmox VE's own tests with weir's part, by the hook and as docs/guide/proxmox.md has it.

    proxmox.py QEMU-SERVER ROOT PROGRAMS

QEMU-SERVER is a checkout of Proxmox VE's qemu-server, whose tests have the command line of each machine. ROOT is a
system with QEMU, PROGRAMS a folder with weir. A machine counts if it starts without weir: this host has none of their
disks, bridges, processors and firmware, so those are replaced, and what needs other hardware is left out. Each that
counts must start with weir's part. Needs root.
"""

import json, os, pathlib, re, shlex, shutil, socket, subprocess, sys, tempfile, time

SERVER, ROOT, PROGRAMS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
LEAST = 20
PATIENCE = 60
VMID = "8006"
NAME = f"vm{VMID}-0"
MAC = "52:54:00:00:01:00"
# QEMU is a child here, has no storage over a network, and no options of Proxmox VE's own.
DROPPED = {"-daemonize", "-id", "-iscsi", "-pidfile"}


def blank(node):
    """A node of block devices without what it reads: an empty disk."""
    if node.get("driver") == "throttle":
        return node | {"file": blank(node["file"])}
    kept = {key: node[key] for key in ("node-name", "read-only") if key in node}
    return kept | {"driver": "null-co", "size": size_of(node.get("node-name", ""))}


def size_of(name):
    """Firmware and its variables share 8 MiB."""
    return 2 << 20 if "pflash" in name or "efidisk" in name else 64 << 20


def parts(value):
    return [part for part in value.split(",") if part]


def replaced(option, value):
    """The option as this host can have it; none if the machine can do without."""
    if option == "-cpu":
        return "max"
    if option == "-machine":
        # `+pve0` is a version of Proxmox VE's own QEMU.
        return re.sub(r"\+pve\d+", "", value)
    if option == "-boot":
        return ",".join(part for part in parts(value) if not part.startswith("splash="))
    if option == "-netdev":
        return "user,id=" + re.search(r"id=(\w+)", value).group(1)
    if option == "-blockdev":
        return json.dumps(blank(json.loads(value)))
    if option == "-drive" and "file=" in value:
        left = ("file=", "format=", "aio=", "cache=", "detect-zeroes=", "discard=")
        kept = [part for part in parts(value) if not part.startswith(left)]
        return ",".join(kept + ["driver=null-co", f"size={size_of(value)}"])
    if option == "-drive":
        return ",".join(part for part in parts(value) if not part.startswith("aio="))
    if option == "-device" and value.startswith("virtio-net"):
        # A card of the machine's own has one queue here.
        return ",".join(part for part in parts(value) if not part.startswith(("mq=", "vectors=")))
    return value


def machine(text):
    words = shlex.split(text.replace("\\\n", " "))[1:]
    line = []
    while words:
        option = words.pop(0)
        value = words.pop(0) if words and not words[0].startswith("-") else None
        if option in DROPPED:
            continue
        line.append(option)
        if value is not None:
            line.append(replaced(option, value))
    if not any("accel=" in word for word in line):
        line += ["-accel", "tcg"]
    return line


def memory_of(line):
    value = line[line.index("-m") + 1] if "-m" in line else "512"
    return value if value.isdigit() else None


class Host:
    """A weir, its hook, and the system with QEMU."""

    def __init__(self, place):
        self.place = place
        # Not below `place`, which is removed with all that is in it.
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="weir-system-")) / "root"
        self.control = place / "control.sock"
        self.machines = place / "machines"
        self.machines.mkdir()
        (self.machines / VMID).write_text(f"{NAME} template=tenant mac={MAC}\n")
        config = f'[switch]\ncontrol = "{self.control}"\nworkers = 1\n[template.tenant]\nvlan = 10\nrate = "1Gbit"\n'
        (place / "weir.toml").write_text(config)
        hook = (REPOSITORY / "examples/proxmox/hook").read_text()
        program = f"{PROGRAMS / 'weir'} --control {self.control}"
        hook = hook.replace("/usr/bin/weir", program).replace("/etc/weir/proxmox\n", f"{self.machines}\n")
        (place / "hook").write_text(hook)
        log = open(place / "weir.log", "wb")
        self.process = subprocess.Popen([PROGRAMS / "weir", "run", place / "weir.toml"], stdout=log, stderr=log)
        self.mount()

    def mount(self):
        """What is written into the system is kept apart from it, and goes with the mounts."""
        base = self.root.parent
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", base], check=True)
        for name in ["upper", "work", "root"]:
            (base / name).mkdir()
        layers = f"lowerdir={ROOT},upperdir={base}/upper,workdir={base}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", self.root], check=True)
        for seen in ["/dev", "/proc", str(self.place)]:
            there = self.root / seen[1:]
            there.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--rbind", seen, there], check=True)
        (self.root / "run/qemu-server").mkdir(parents=True)
        shutil.copytree(SERVER / "src/usr", self.root / "usr/share/qemu-server")

    def end(self):
        self.process.kill()
        self.process.wait()
        base = self.root.parent
        subprocess.run(["umount", "--recursive", "--lazy", base], check=True)
        base.rmdir()

    def weir(self, *arguments):
        command = [PROGRAMS / "weir", "--control", self.control, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def does(self, phase):
        done = subprocess.run(["sh", self.place / "hook", VMID, phase], capture_output=True, text=True)
        assert done.returncode == 0, f"{phase}: {done.stderr}"

    def state(self):
        vifs = json.loads(self.weir("vif", "list", "--json"))
        return {vif["config"]["name"]: vif["state"] for vif in vifs}

    def part(self, memory, version):
        options = ["--for", "proxmox", "--memory", f"{memory}M", "--qemu-version", version]
        printed = self.weir("qemu-args", NAME, *options)
        [args] = [line for line in printed.splitlines() if line.startswith("args: ")]
        return shlex.split(args.removeprefix("args: "))

    def start(self, line):
        monitor = self.root / "run/qemu-server" / f"{VMID}.qmp"
        for left in monitor.parent.iterdir():
            left.unlink()
        command = ["chroot", self.root, "/usr/bin/qemu-system-x86_64", *line]
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and process.poll() is None:
            try:
                return Machine(process, monitor)
            except OSError:
                time.sleep(0.05)
        process.kill()
        raise NotStarted(process.communicate()[1].strip() or "it does not answer")


class NotStarted(Exception):
    pass


class Machine:
    """A QEMU whose monitor answers."""

    def __init__(self, process, monitor):
        self.process = process
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(monitor))
        self.stream = self.socket.makefile("rw")
        self.stream.readline()
        self.asks("qmp_capabilities")

    def asks(self, command):
        self.stream.write(json.dumps({"execute": command}) + "\n")
        self.stream.flush()
        while True:
            answer = json.loads(self.stream.readline())
            if "return" in answer or "error" in answer:
                return answer.get("return")

    def is_running(self):
        return self.asks("query-status")["running"]

    def version(self):
        version = self.asks("query-version")["qemu"]
        return f"{version['major']}.{version['minor']}"

    def end(self):
        self.process.kill()
        self.process.communicate()
        self.socket.close()


def within(what, holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def tried(host, line):
    """What hinders the machine without weir; none if it has started with it."""
    if "-numa" in line or memory_of(line) is None:
        return "numa or hotplug of memory: the guide asks for huge pages"
    try:
        plain = host.start(line)
    except NotStarted as reason:
        return str(reason)
    within("it runs without weir", plain.is_running)
    version = plain.version()
    plain.end()
    host.does("pre-start")
    with_weir = host.start(line + host.part(memory_of(line), version))
    try:
        within("it runs", with_weir.is_running)
        within("QEMU is connected", lambda: host.state()[NAME] != "waiting")
        host.does("post-start")
        host.does("pre-stop")
    finally:
        with_weir.end()
    host.does("post-stop")
    assert host.state() == {}, host.state()
    return None


def main():
    files = sorted((SERVER / "src/test/cfg2cmd").rglob("*.conf.cmd"))
    files = [file for file in files if file.parent.name != "aarch64"]
    started = 0
    with tempfile.TemporaryDirectory(prefix="weir-proxmox-") as place:
        host = Host(pathlib.Path(place))
        try:
            within("weir serves", lambda: host.control.exists())
            for file in files:
                hindrance = tried(host, machine(file.read_text()))
                started += hindrance is None
                print(f"{file.name}: {hindrance or 'starts with weir'}", flush=True)
        finally:
            host.end()
    print(f"{started} of {len(files)} machines start here, each with weir's part")
    assert started >= LEAST, f"fewer than {LEAST} machines start here"


if __name__ == "__main__":
    if os.environ.get("WEIR_UNSHARED") is None:
        # The mounts end with the script.
        os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", sys.argv[0], *sys.argv[1:]],
                   os.environ | {"WEIR_UNSHARED": "1"})
    main()
