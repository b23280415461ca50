//! A way out of the host through a real gvproxy, without root, as `docs/guide/without-root.md` describes it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use weir_testing::{Running, eventually, skipped};
use weir_vif::{Options, QueuePair, Vif, WaitFor};
use weir_wire::{Mac, Offload};

const MODULE: &str = "github.com/containers/gvisor-tap-vsock/cmd/gvproxy@v0.8.7";
const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const GUEST: [u8; 4] = [192, 168, 127, 10];
const GATEWAY: [u8; 4] = [192, 168, 127, 1];
/// The host's loopback, by gvproxy.
const HOST: [u8; 4] = [192, 168, 127, 254];

/// gvproxy, which Go builds if it is missing; `None` if that is impossible.
fn gvproxy() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let mut at = std::env::split_paths(&path).chain([made.clone()]).map(|dir| dir.join("gvproxy"));
    if let Some(there) = at.find(|program| program.exists()) {
        return Some(there);
    }
    let mut go = Command::new("timeout");
    go.args(["300", "go", "install", MODULE]).env("GOBIN", &made).stdin(Stdio::null());
    let installed = go.output().is_ok_and(|output| output.status.success());
    if !installed {
        skipped(&format!("gvproxy is not there: go install {MODULE}"));
    }
    installed.then(|| made.join("gvproxy"))
}

/// weir with a guest, and gvproxy as its way out.
struct Host {
    dir: tempfile::TempDir,
    weir: Option<Running>,
    _keeper: Running,
}

impl Host {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn new(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let config = format!(
            "[switch]\nworkers = 1\ncontrol = {:?}\nkeeper = {:?}\n[vif.web0]\nmac = \"{MAC}\"\n\
             [uplink.out]\nkind = \"stream\"\npath = {:?}\n{more}",
            at("control.sock"),
            at("keeper.sock"),
            at("out.sock"),
        );
        fs::write(at("weir.toml"), config).unwrap();
        let mut keeper = Command::new(env!("CARGO_BIN_EXE_weir-keeper"));
        let keeper = Running(keeper.arg(at("keeper.sock")).stdin(Stdio::null()).spawn().unwrap());
        eventually("the keeper listens", || weir_keeper::connect(&at("keeper.sock")).ok());
        let mut host = Self { dir, weir: None, _keeper: keeper };
        host.start_weir();
        host
    }

    fn start_weir(&mut self) {
        self.weir = None;
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let log = fs::File::options().create(true).append(true).open(self.at("log")).unwrap();
        command.arg("run").arg(self.at("weir.toml")).stdin(Stdio::null()).stderr(log);
        self.weir = Some(Running(command.spawn().unwrap()));
        eventually("weir serves", || UnixStream::connect(self.at("control.sock")).ok());
    }

    fn start_gvproxy(&self, program: &Path) -> Running {
        let socket = format!("unix://{}", self.at("out.sock").display());
        let mut command = Command::new(program);
        command.args(["-listen-qemu", &socket, "-ssh-port", "-1"]).stdin(Stdio::null());
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn weir(&self, args: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output =
            command.arg("--control").arg(self.at("control.sock")).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn is_out(&self) {
        eventually("the way out is open", || {
            (!self.weir(&["explain", "out"]).contains("no connection")).then_some(())
        });
    }

    /// The guest, and its one queue pair.
    fn guest(&self) -> (Vif, QueuePair) {
        let socket = self.at("web0.sock");
        let mut guest =
            eventually("its socket is there", || Vif::connect(&socket, &Options::new(MAC)).ok());
        let pair = guest.queue_pairs().remove(0);
        (guest, pair)
    }
}

/// Sends `frame` until a frame comes for which `of` returns a value.
fn ask<T>(pair: &mut QueuePair, frame: &[u8], of: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let (end, mut got) = (Instant::now() + Duration::from_secs(5), Vec::new());
    while Instant::now() < end {
        pair.send(frame, &Offload::NONE).unwrap();
        pair.flush();
        let again = Instant::now() + Duration::from_millis(300);
        while Instant::now() < again {
            while pair.recv_into(&mut got).is_some() {
                if let Some(found) = of(&got) {
                    return Some(found);
                }
            }
            let _ = pair.wait(WaitFor::Receive, Duration::from_millis(10));
        }
    }
    None
}

/// The station that answers for an address.
fn resolve(pair: &mut QueuePair, address: [u8; 4]) -> Option<[u8; 6]> {
    let mut question = [&[0xff; 6][..], &MAC.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    question.extend([&MAC.0[..], &GUEST, &[0; 6], &address, &[0; 18]].concat());
    ask(pair, &question, |frame| {
        let is_answer = frame.get(12..14)? == [8, 6] && frame.get(20..22)? == [0, 2];
        (is_answer && frame.get(28..32)? == address).then(|| *frame[22..].first_chunk().unwrap())
    })
}

/// A segment of the connection from port 5000 to `to`.
fn segment(
    gateway: [u8; 6],
    (to, port): ([u8; 4], u16),
    (seq, ack): (u32, Option<u32>),
    data: &[u8],
) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(MAC.0, gateway).ipv4(GUEST, to, 64);
    let tcp = ip.tcp(5000, port, seq, 65_000);
    let mut frame = Vec::new();
    match ack {
        Some(ack) => tcp.ack(ack).psh().write(&mut frame, data),
        None => tcp.syn().write(&mut frame, data),
    }
    .unwrap();
    frame
}

/// The peer's first sequence number, if `frame` accepts the connection.
fn accepted(frame: &[u8], from: [u8; 4]) -> Option<u32> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
    let is_from = frame.get(26..30)? == from;
    (is_from && tcp.syn() && tcp.ack() && tcp.destination_port() == 5000)
        .then(|| tcp.sequence_number())
}

/// A request for an address, and whether one is offered.
fn offered(pair: &mut QueuePair) -> Option<Ipv4Addr> {
    let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4];
    message.extend([0; 20]);
    message.extend(MAC.0);
    message.extend([0; 202]);
    message.extend([99, 130, 83, 99, 53, 1, 1, 255]);
    message.resize(300, 0);
    let ip = PacketBuilder::ethernet2(MAC.0, [0xff; 6]).ipv4([0; 4], [255; 4], 64);
    let mut frame = Vec::new();
    ip.udp(68, 67).write(&mut frame, &message).unwrap();
    ask(pair, &frame, |frame| {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(TransportSlice::Udp(udp)) = packet.transport else { return None };
        (udp.source_port() == 67).then_some(())?;
        let given: [u8; 4] = *udp.payload().get(16..)?.first_chunk()?;
        Some(Ipv4Addr::from(given))
    })
}

#[test]
fn a_guest_gets_out_by_gvproxy_without_root() {
    let Some(program) = gvproxy() else { return };
    let mut host = Host::new("host_access = true\n");
    let why = host.weir(&["explain", "out"]);
    assert!(why.contains("no connection") && why.contains("out.sock"), "{why}");
    let mut proxy = host.start_gvproxy(&program);
    host.is_out();
    let (_guest, mut pair) = host.guest();
    let address = offered(&mut pair).expect("an address");
    assert!(address.octets().starts_with(&[192, 168, 127]), "{address}");
    let gateway = resolve(&mut pair, GATEWAY).expect("the gateway");

    // A connection to a server outside weir and gvproxy, with data.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = (HOST, server.local_addr().unwrap().port());
    let syn = segment(gateway, to, (1000, None), &[]);
    let theirs = ask(&mut pair, &syn, |frame| accepted(frame, HOST)).expect("a connection");
    pair.send(&segment(gateway, to, (1001, Some(theirs + 1)), b"hello"), &Offload::NONE).unwrap();
    pair.flush();
    let (mut client, _) = server.accept().unwrap();
    let mut heard = [0; 5];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
    client.write_all(b"there").unwrap();
    let again = segment(gateway, to, (1006, Some(theirs + 1)), &[]);
    let answered = ask(&mut pair, &again, |frame| {
        frame.windows(5).any(|bytes| bytes == b"there").then_some(())
    });
    assert!(answered.is_some());

    // After a SIGKILL, the next weir continues with the socket. gvproxy would end with its client, and does not end.
    host.start_weir();
    host.is_out();
    assert_eq!(resolve(&mut pair, GATEWAY), Some(gateway));
    assert!(proxy.0.try_wait().unwrap().is_none(), "gvproxy has ended");

    // weir finds a gvproxy that is started anew.
    drop(proxy);
    let _ = fs::remove_file(host.at("out.sock"));
    eventually("the loss is said", || {
        host.weir(&["explain", "out"]).contains("no connection").then_some(())
    });
    let _proxy = host.start_gvproxy(&program);
    assert_eq!(resolve(&mut pair, GATEWAY), Some(gateway));
}

#[test]
fn guests_of_gvproxy_reach_neither_the_host_nor_its_api_and_get_addresses_of_weir() {
    let Some(program) = gvproxy() else { return };
    let host = Host::new(
        "[network.lan]\naddress = \"192.168.127.2/24\"\ndhcp = true\nrouter = \"192.168.127.1\"\n\
         range = \"192.168.127.100-192.168.127.110\"\n",
    );
    let _proxy = host.start_gvproxy(&program);
    host.is_out();
    let (_guest, mut pair) = host.guest();
    // gvproxy would give 192.168.127.3 or another low address.
    let address = offered(&mut pair).expect("an address").octets();
    assert!(address[..3] == [192, 168, 127] && address[3] >= 100, "{address:?}");
    let gateway = resolve(&mut pair, GATEWAY).expect("the gateway");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    for to in [(HOST, server.local_addr().unwrap().port()), (GATEWAY, 80)] {
        let syn = segment(gateway, to, (1000, None), &[]);
        assert_eq!(ask(&mut pair, &syn, |frame| accepted(frame, to.0)), None);
    }
    assert!(server.accept().is_err());
    let stats = host.weir(&["stats", "--json"]);
    assert!(stats.contains("filtered_rx"), "{stats}");
}
