//! The same packets through the groups of an interface, and through the kernel's nf_conntrack with the same rules. Each
//! packet passes both or neither, or [`EXPLAINED`] has the reason (docs/design/filters.md#0058).
//!
//! The kernel routes between two TAPs in a network namespace of its own: the guest's and the peers'. `PACKETS` in the
//! environment is the number of packets, `SEED` that of the first case.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_groups::{Decision, Direction, Frame, Other, Peer, Policy, Rows, Rule, Table, Vlans, Why};
use weir_limits::{GROUP_TAKE_UP_NS, HEAD_LEN};
use weir_port_tap::{Tap, TapOptions};
use weir_wire::{Mac, VnetHdr};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;
const URG: u8 = 32;

/// MAC addresses of the TAPs, and of the hosts behind them.
const ROUTER: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const HOST: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

/// Packets of a case; its flows are no other case's.
const CASE: usize = 40;
/// Cases between two namespaces: the kernel has room for some 260,000 connections.
const CASES: usize = 20_000;

/// A namespace in which the kernel judges.
struct Kernel {
    _namespace: Namespace,
    /// The guest's and the peers'.
    taps: [Tap; 2],
}

/// Rules of the guest, as both judges have them.
#[derive(Clone, Copy, Debug)]
enum Rules {
    /// The guest may open all connections.
    OpenOut,
    /// The guest may open few.
    ClosedOut,
}

impl Rules {
    fn policy(self) -> Policy {
        let rule = |direction, protocol, value| Rule {
            direction,
            protocol: Some(protocol),
            values: [(value, value)].into(),
            other: Other::Anyone,
        };
        use Direction::{In, Out};
        let inward = [(6, 80), (17, 53), (1, 8), (58, 128), (132, 80)];
        let inward = inward.map(|(protocol, value)| rule(In, protocol, value));
        let outward = [(6, 443), (17, 53), (1, 8), (132, 443)];
        let outward = outward.map(|(protocol, value)| rule(Out, protocol, value));
        let rules = match self {
            Self::OpenOut => inward.to_vec(),
            Self::ClosedOut => [&inward[..], &outward].concat(),
        };
        Policy {
            allow_in: false,
            allow_out: matches!(self, Self::OpenOut),
            rules: rules.into(),
            groups: Box::default(),
            log: false,
            set_id: 0,
            generation: 1,
        }
    }

    fn nft(self) -> String {
        let outward = match self {
            // ICMP without a state is a packet of its own.
            Self::OpenOut => {
                "iifname t0 ct state new accept\niifname t0 meta l4proto {icmp, ipv6-icmp} accept"
            }
            Self::ClosedOut => {
                "iifname t0 ct state new tcp dport 443 accept
                iifname t0 ct state new sctp dport 443 accept
                iifname t0 ct state new udp dport 53 accept
                iifname t0 icmp type echo-request accept"
            }
        };
        format!(
            "table inet groups {{
                chain forward {{
                    type filter hook forward priority 0; policy drop;
                    ct state established,related accept
                    {outward}
                    iifname t1 ct state new tcp dport 80 accept
                    iifname t1 ct state new sctp dport 80 accept
                    iifname t1 ct state new udp dport 53 accept
                    iifname t1 icmp type echo-request accept
                    iifname t1 icmpv6 type echo-request accept
                }}
            }}\n"
        )
    }
}

fn run(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A network namespace, which ends with this.
struct Namespace(Child);

impl Namespace {
    /// One with TAPs of these names and addresses, after `prepare` in it.
    fn with<const N: usize>(
        taps: [(&'static str, [u8; 6]); N],
        prepare: impl FnOnce() + Send + 'static,
    ) -> (Self, [Tap; N]) {
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec sleep 3600"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let path = format!("/proc/{}/ns/net", child.id());
        let this = Self(child);
        let taps = std::thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(File::open(path).unwrap().as_fd(), network).unwrap();
            let taps = taps.map(|(name, mac)| {
                let mac = Some(Mac(mac));
                let options = TapOptions { name: name.into(), queues: 1, mtu: Some(1500), mac };
                Tap::open(&options).unwrap()
            });
            prepare();
            taps
        });
        (this, taps.join().unwrap())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Kernel {
    fn start(rules: Rules) -> Self {
        let (namespace, taps) = Namespace::with(
            [("t0", ROUTER[0]), ("t1", ROUTER[1])],
            move || {
                run(
                "for key in ipv4.ip_forward ipv6.conf.all.forwarding netfilter.nf_conntrack_tcp_be_liberal; do
                    echo 1 > /proc/sys/net/$(echo $key | tr . /); done
                for key in ipv4.conf.all.rp_filter ipv4.conf.t0.rp_filter ipv4.conf.t1.rp_filter \
                    netfilter.nf_conntrack_checksum ipv6.conf.t0.accept_dad ipv6.conf.t1.accept_dad; do
                    echo 0 > /proc/sys/net/$(echo $key | tr . /); done
                ip link set t0 up; ip link set t1 up
                ip addr add 10.0.0.254/24 dev t0; ip addr add 10.255.0.254/24 dev t1
                ip -6 addr add fd00::fe/64 dev t0 nodad; ip -6 addr add fd01::fe/64 dev t1 nodad
                ip neigh add 10.0.0.1 dev t0 lladdr 02:00:00:00:01:01 nud permanent
                ip neigh add fd00::1 dev t0 lladdr 02:00:00:00:01:01 nud permanent
                ip neigh add 10.255.0.1 dev t1 lladdr 02:00:00:00:01:02 nud permanent
                ip neigh add fd01::1 dev t1 lladdr 02:00:00:00:01:02 nud permanent
                ip route add default via 10.255.0.1; ip -6 route add default via fd01::1",
            );
                let mut nft =
                    Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
                nft.stdin.take().unwrap().write_all(rules.nft().as_bytes()).unwrap();
                assert!(nft.wait().unwrap().success());
            },
        );
        Self { _namespace: namespace, taps }
    }

    /// The TAP that frames of this direction come in by, and the one that they leave by.
    fn ends(&self, direction: Direction) -> [&OwnedFd; 2] {
        let [guest, peers] = [&self.taps[0].queues()[0], &self.taps[1].queues()[0]];
        match direction {
            Direction::Out => [guest, peers],
            Direction::In => [peers, guest],
        }
    }

    /// True if the kernel lets a frame pass. It has done so, or not, when the frame is written.
    fn passes(&self, direction: Direction, frame: &[u8]) -> bool {
        let [from, to] = self.ends(direction);
        let sent = [&VnetHdr::default().to_bytes(), frame].concat();
        assert_eq!(rustix::io::write(from, &sent), Ok(sent.len()));
        let mut bytes = [0; 2048];
        // A router changes what is before the addresses.
        let packet = if frame[12] == 8 { 26 } else { 22 };
        let mut passes = false;
        loop {
            match rustix::io::read(to, &mut bytes) {
                Ok(len) => passes |= bytes[..len].get(12 + packet..) == Some(&frame[packet..]),
                Err(Errno::AGAIN) => return passes,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % end as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

fn checksum(header: &[u8]) -> [u8; 2] {
    let sum: u32 =
        header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

fn ip(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let len = (20 + payload.len() as u16).to_be_bytes();
            let mut packet = vec![0x45, 0, len[0], len[1], 0, 7, 0, 0, 64, protocol, 0, 0];
            packet.extend(src.octets().iter().chain(&dst.octets()));
            let sum = checksum(&packet);
            packet[10..12].copy_from_slice(&sum);
            packet.extend(payload);
            packet
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let len = (payload.len() as u16).to_be_bytes();
            let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], protocol, 64];
            packet.extend(src.octets().iter().chain(&dst.octets()));
            packet.extend(payload);
            packet
        }
        _ => unreachable!("two families"),
    }
}

/// A packet, as a report of a difference shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Tcp(u8),
    /// A chunk of SCTP, and the difference of the verification tag from the right one.
    Sctp(u8, u32),
    Udp,
    Query,
    Answer,
    /// An ICMP error about a packet of TCP, of UDP, of SCTP or a query.
    Error(u8),
}

/// A conversation of the guest with a peer.
#[derive(Clone, Copy, Debug)]
struct Flow {
    peer: IpAddr,
    guest: IpAddr,
    /// The guest's port, or the identifier of queries.
    own: u16,
    other: u16,
    protocol: Protocol,
    /// The next step of [`SCRIPT`] or [`SCTP_SCRIPT`].
    next: usize,
    /// Verification tags of packets to the peer and to the guest.
    tags: [u32; 2],
    /// The guest opens it, had all gone well.
    by_guest: bool,
    history: History,
    /// The judges differ about a packet, and so about all that follow.
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Sctp,
    Others,
}

/// A flow of TCP or SCTP so far, as [`EXPLAINED`] needs it.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// The sender of the first packet that passed.
    opener: Option<Direction>,
    /// FINs of the guest and of the peer.
    fins: [usize; 2],
    resets: usize,
    /// A packet that does not open a connection passed by the rules.
    is_taken_up: bool,
    /// Both ends have sent SYN.
    is_crossed: bool,
    /// A SYN with ACK came, and a SYN came after it.
    is_agreed: bool,
    is_repeated: bool,
    /// A SYN came after an end of the connection: after a FIN or RST.
    is_reopened: bool,
    /// A second INIT or COOKIE ECHO of SCTP has passed: an end has restarted, or a third party has forged the packet.
    is_anew: bool,
}

impl History {
    /// A segment that both judges let pass, or neither.
    fn add(&mut self, direction: Direction, flags: u8, judged: Decision) {
        let is_ended = self.fins != [0; 2] || self.resets > 0;
        self.is_reopened |= opens(flags) && is_ended;
        if let Decision::Passes(_) = judged {
            self.is_taken_up |= is_by_rules(judged) && !opens(flags);
            self.is_agreed |= flags == SYN | ACK;
            self.is_repeated |= opens(flags) && self.is_agreed;
            self.opener = self.opener.or(Some(direction));
            self.is_crossed |= opens(flags) && self.opener != Some(direction);
            let is_in = usize::from(direction == Direction::In);
            self.fins[is_in] += usize::from(flags & FIN != 0);
            self.resets += usize::from(flags & RST != 0);
        }
    }
}

impl History {
    /// A packet of SCTP that both judges let pass, or neither.
    fn add_sctp(&mut self, direction: Direction, chunk: u8, judged: Decision) {
        if let Decision::Passes(_) = judged {
            self.is_taken_up |= is_by_rules(judged) && chunk != INIT;
            let has_cookie = chunk == COOKIE_ECHO && self.opener == Some(direction);
            self.is_anew |= chunk == INIT && self.opener.is_some() || has_cookie && self.is_agreed;
            self.is_agreed |= chunk == COOKIE_ECHO;
            self.opener = self.opener.or(Some(direction));
        }
    }
}

fn opens(flags: u8) -> bool {
    flags & (SYN | ACK) == SYN
}

fn is_by_rules(judged: Decision) -> bool {
    matches!(judged, Decision::Passes(Why::Rule(_) | Why::Default))
}

/// A difference that the design page explains: its name there, and the function that recognizes it.
type Explained = (&'static str, fn(&History, Direction, u8, Decision) -> bool);

const EXPLAINED: [Explained; 6] = [
    // State is lost with weir. A connection goes on in its middle, and whatever its next segment is, it is taken up.
    ("taken up in the middle", |history, _, flags, judged| {
        let is_new = history.opener.is_none() || history.resets > 0;
        history.is_taken_up || is_new && !opens(flags) && is_by_rules(judged)
    }),
    // The other end has forgotten the connection, and opens one with the same ports.
    ("SYN against a connection", |history, direction, flags, judged| {
        let is_against = history.opener.is_some_and(|opener| opener != direction);
        is_against && opens(flags) && is_by_rules(judged)
    }),
    // After SYNs of both ends, the kernel takes either end's ACK as the end of the handshake.
    ("SYN and ACK again after SYNs of both ends", |history, _, flags, judged| {
        history.is_crossed && flags == SYN | ACK && judged == Decision::Passes(Why::Established)
    }),
    // The kernel takes a SYN of a live connection, and its answer, for a new handshake.
    ("SYN and ACK of the opener after it has sent SYN again", |history, _, flags, judged| {
        history.is_repeated && flags == SYN | ACK && judged == Decision::Refused(Why::Invalid)
    }),
    // The kernel keeps such a connection for 10 s if the other end has sent an ACK in place of SYN and ACK.
    ("after a RST of a half-open connection", |history, _, _, judged| {
        history.resets > 0 && judged == Decision::Refused(Why::NoRule)
    }),
    // The kernel waits for an answer before it takes the SYN for a new connection, unless it has seen the end of the
    // old one. It forgets the old one even if the rules refuse the SYN.
    ("after a SYN on an ended connection", |history, _, _, _| history.is_reopened),
];

const DATA: u8 = 0;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const SACK: u8 = 3;
const HEARTBEAT: u8 = 4;
const HEARTBEAT_ACK: u8 = 5;
const ABORT: u8 = 6;
const SHUTDOWN: u8 = 7;
const SHUTDOWN_ACK: u8 = 8;
const COOKIE_ECHO: u8 = 10;
const COOKIE_ACK: u8 = 11;
const SHUTDOWN_COMPLETE: u8 = 14;

/// As [`Explained`], for a chunk of SCTP.
type ExplainedSctp = (&'static str, fn(&History, Direction, u8, Decision) -> bool);

const EXPLAINED_SCTP: [ExplainedSctp; 4] = [
    // The same as for TCP. The kernel does not learn an association from DATA or SACK, but from INIT ACK.
    ("SCTP taken up in the middle", |history, _, chunk, judged| {
        let begins_here = chunk != INIT && (is_by_rules(judged) || chunk == INIT_ACK);
        history.is_taken_up || history.opener.is_none() && begins_here
    }),
    ("INIT against an association", |history, direction, chunk, _| {
        history.opener.is_some_and(|opener| opener != direction) && chunk == INIT
    }),
    // The kernel accepts only the tags of the latest INIT, even if a third party has sent it. weir accepts the answer
    // to such an INIT with any tag.
    ("after an INIT behind the first one", |history, _, chunk, judged| {
        history.is_anew || chunk == INIT_ACK && judged == Decision::Passes(Why::Established)
    }),
    // The kernel lets these pass, for hosts with several addresses and for ends that have forgotten the association.
    ("another tag of HEARTBEAT or SHUTDOWN ACK", |_, _, chunk, judged| {
        let is_let = matches!(chunk, HEARTBEAT | HEARTBEAT_ACK | SHUTDOWN_ACK);
        is_let && judged == Decision::Refused(Why::Invalid)
    }),
];

/// An association of SCTP from its end: true is the opener.
const SCTP_SCRIPT: [(bool, u8); 14] = [
    (true, INIT),
    (false, INIT_ACK),
    (true, COOKIE_ECHO),
    (false, COOKIE_ACK),
    (true, DATA),
    (false, SACK),
    (false, DATA),
    (true, SACK),
    (true, HEARTBEAT),
    (false, HEARTBEAT_ACK),
    (true, DATA),
    (true, SHUTDOWN),
    (false, SHUTDOWN_ACK),
    (true, SHUTDOWN_COMPLETE),
];

/// A connection of TCP from its end: true is the opener.
const SCRIPT: [(bool, u8); 9] = [
    (true, SYN),
    (false, SYN | ACK),
    (true, ACK),
    (true, ACK | PSH),
    (false, ACK),
    (true, FIN | ACK),
    (false, ACK),
    (false, FIN | ACK),
    (true, ACK),
];

const FLAGS: [u8; 20] = [
    SYN,
    SYN,
    SYN,
    SYN | ACK,
    SYN | ACK,
    ACK,
    ACK,
    ACK | PSH,
    FIN | ACK,
    FIN | ACK,
    RST,
    RST | ACK,
    0,
    FIN,
    SYN | FIN,
    SYN | RST,
    ACK | URG,
    SYN | URG,
    RST | URG,
    FIN | ACK | URG,
];

impl Flow {
    /// The next packet, mostly the one that a host would send.
    fn next(&mut self, random: &mut Random) -> (Direction, Sent) {
        let direction = |out| if out { Direction::Out } else { Direction::In };
        let any = direction(random.below(2) == 0);
        if self.protocol == Protocol::Sctp {
            if random.below(30) == 0 {
                return (any, Sent::Error(132));
            }
            if random.below(5) == 0 {
                let wrong = u32::from(random.below(4) == 0);
                let chunk = match random.below(6) {
                    0 => ABORT,
                    _ => SCTP_SCRIPT[random.below(SCTP_SCRIPT.len())].1,
                };
                // Some ends begin anew with another tag.
                let own = usize::from(any == Direction::Out);
                self.tags[own] += u32::from(chunk == INIT && random.below(2) == 0);
                return (any, Sent::Sctp(chunk, wrong));
            }
            let (opener, chunk) = SCTP_SCRIPT[self.next % SCTP_SCRIPT.len()];
            self.next += 1;
            return (direction(opener == self.by_guest), Sent::Sctp(chunk, 0));
        }
        if self.protocol == Protocol::Others {
            let kinds =
                [Sent::Udp, Sent::Udp, Sent::Query, Sent::Answer, Sent::Error(17), Sent::Error(1)];
            return (any, random.one_of(&kinds));
        }
        if random.below(20) == 0 {
            return (any, Sent::Error(6));
        }
        if random.below(4) == 0 {
            return (any, Sent::Tcp(random.one_of(&FLAGS)));
        }
        let (opener, flags) = SCRIPT[self.next % SCRIPT.len()];
        self.next += 1;
        (direction(opener == self.by_guest), Sent::Tcp(flags))
    }

    fn frame(&self, direction: Direction, sent: Sent) -> Vec<u8> {
        let out = direction == Direction::Out;
        let (src, dst) = if out { (self.guest, self.peer) } else { (self.peer, self.guest) };
        let ports = match out {
            true => [self.own, self.other],
            false => [self.other, self.own],
        };
        let [s0, s1, d0, d1] = {
            let ([s0, s1], [d0, d1]) = (ports[0].to_be_bytes(), ports[1].to_be_bytes());
            [s0, s1, d0, d1]
        };
        let [id0, id1] = self.own.to_be_bytes();
        let v6 = src.is_ipv6();
        let icmp = |v4, with| if v6 { (58, with) } else { (1, v4) };
        let (protocol, payload) = match sent {
            Sent::Tcp(flags) => {
                // Numbers as of a connection without data.
                let number = if flags & SYN != 0 { 99 } else { 100 };
                let rest = [0, 0, 0, number, 0, 0, 0, 100, 0x50, flags, 1, 0, 0, 0, 0, 0];
                (6, [&[s0, s1, d0, d1][..], &rest].concat())
            }
            Sent::Sctp(chunk, wrong) => {
                let own = usize::from(out);
                let asks =
                    |kind| [&[0, 0, kind][..], &self.tags[own].to_be_bytes(), &[1; 12]].concat();
                let value = match chunk {
                    INIT | INIT_ACK => asks(20),
                    DATA => [&[3, 0, 20][..], &[0; 16]].concat(),
                    SACK => [&[0, 0, 16][..], &[0; 12]].concat(),
                    HEARTBEAT | HEARTBEAT_ACK | SHUTDOWN | COOKIE_ECHO => vec![0, 0, 8, 0, 0, 0, 0],
                    _ => vec![0, 0, 4],
                };
                let tag = if chunk == INIT { wrong } else { self.tags[1 - own] + wrong * 1000 };
                let front = [&[s0, s1, d0, d1][..], &tag.to_be_bytes(), &[0; 4], &[chunk]].concat();
                (132, [front, value].concat())
            }
            Sent::Udp => (17, vec![s0, s1, d0, d1, 0, 8, 0, 0]),
            Sent::Query => {
                let (protocol, kind) = icmp(8, 128);
                (protocol, vec![kind, 0, 0, 0, id0, id1, 0, 1])
            }
            Sent::Answer => {
                let (protocol, kind) = icmp(0, 129);
                (protocol, vec![kind, 0, 0, 0, id0, id1, 0, 1])
            }
            Sent::Error(about) => {
                let (protocol, kind) = icmp(3, 1);
                let about = match about {
                    6 => Sent::Tcp(ACK),
                    17 => Sent::Udp,
                    132 => Sent::Sctp(DATA, 0),
                    _ => Sent::Query,
                };
                let about = self.frame(direction.reverse(), about);
                let mut message = vec![kind, 1, 0, 0, 0, 0, 0, 0];
                // The shortest quotation that RFC 792 allows.
                message.extend(&about[14..14 + if v6 { 48 } else { 28 }]);
                (protocol, message)
            }
        };
        let (from, to) = if out { (HOST[0], ROUTER[0]) } else { (HOST[1], ROUTER[1]) };
        let ethertype: [u8; 2] = if v6 { [0x86, 0xdd] } else { [8, 0] };
        [&to[..], &from, &ethertype, &ip(src, dst, protocol, &payload)].concat()
    }
}

/// Flows of a case: two peers that no other case has.
fn flows(case: usize, random: &mut Random) -> Vec<Flow> {
    let [_, a, b, c] = (case as u32).to_be_bytes();
    let v6 = random.below(2) == 0;
    let flow = |nth: u8, random: &mut Random| {
        let (guest, peer) = match v6 {
            true => (
                "fd00::1".parse().unwrap(),
                IpAddr::from([
                    0xfd02,
                    0,
                    0,
                    0,
                    0,
                    u16::from(a),
                    u16::from_be_bytes([b, c]),
                    nth.into(),
                ]),
            ),
            false => ([10, 0, 0, 1].into(), IpAddr::from([20 + a, b, c, 1 + nth])),
        };
        let (own, other) =
            random.one_of(&[(80, 4000), (5000, 443), (53, 4000), (5000, 53), (5000, 81)]);
        Flow {
            peer,
            guest,
            own,
            other,
            protocol: random.one_of(&[
                Protocol::Tcp,
                Protocol::Tcp,
                Protocol::Sctp,
                Protocol::Others,
            ]),
            next: 0,
            tags: [100, 200],
            by_guest: own == 5000,
            history: History::default(),
            is_over: false,
        }
    };
    (0..2).map(|nth| flow(nth, random)).collect()
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|it| it.parse().expect("a number"))
}

/// The decision about a frame, as workers come to it.
fn judge(
    (table, rows): (&mut Table, &mut Rows),
    policy: &Policy,
    direction: Direction,
    bytes: &[u8],
    now_ns: u64,
) -> Decision {
    let mut judged = Decision::Passes(Why::Established);
    let (mut head, front) = ([0; HEAD_LEN], bytes.len().min(HEAD_LEN));
    head[..front].copy_from_slice(&bytes[..front]);
    rows.read(1, |_| (&head, front, Vlans::default()));
    table.ask(policy, direction, rows, None, now_ns, &mut |table, _, _| {
        let (bytes, len) = (&head[..front], bytes.len() as u32);
        let frame = Frame { bytes, len, vid: 0, again: false };
        judged = table.judge(policy, direction, frame, Peer::default(), now_ns).unwrap();
    });
    judged
}

#[test]
fn root_packets_pass_as_by_the_kernels_conntrack() {
    if !weir_testing::is_root("TAPs and nftables in a network namespace")
        || !weir_testing::has("nft", "nftables")
    {
        return;
    }
    let packets = number("PACKETS").unwrap_or(20_000);
    let seed = number("SEED").unwrap_or(1);
    let (mut compared, mut passed, mut case) = (0, 0, 0);
    let (mut explained, mut faults) = ([0; EXPLAINED.len() + EXPLAINED_SCTP.len()], Vec::new());
    let names = EXPLAINED.iter().map(|(name, _)| *name);
    let names: Vec<_> = names.chain(EXPLAINED_SCTP.iter().map(|(name, _)| *name)).collect();
    let now_ns = GROUP_TAKE_UP_NS + 1_000_000_000;
    let cases = (packets / 2 / (CASE * 3 / 4)).clamp(1, CASES);
    for round in 0.. {
        if compared >= packets {
            break;
        }
        let rules = if round % 2 == 0 { Rules::OpenOut } else { Rules::ClosedOut };
        let (kernel, policy) = (Kernel::start(rules), rules.policy());
        for _ in 0..cases {
            case += 1;
            let mut table = Table::new(case as u64, 0);
            let mut rows = Rows::default();
            let mut random = Random((seed + case) as u64);
            let mut flows = flows(case, &mut random);
            let mut told = Vec::new();
            for _ in 0..CASE {
                let at = random.below(2);
                let flow = &mut flows[at];
                let (direction, sent) = flow.next(&mut random);
                if flow.is_over {
                    continue;
                }
                let bytes = flow.frame(direction, sent);
                let kernel_passes = kernel.passes(direction, &bytes);
                let judged = judge((&mut table, &mut rows), &policy, direction, &bytes, now_ns);
                let passes = matches!(judged, Decision::Passes(_));
                compared += 1;
                passed += usize::from(passes);
                told.push(format!("flow {at} {direction:?} {sent:?} {judged:?}"));
                if passes == kernel_passes {
                    match sent {
                        Sent::Tcp(flags) => flow.history.add(direction, flags, judged),
                        Sent::Sctp(chunk, _) => flow.history.add_sctp(direction, chunk, judged),
                        _ => {}
                    }
                    continue;
                }
                flow.is_over = true;
                let of_sctp = |chunk| {
                    let mut all = EXPLAINED_SCTP.iter();
                    let kind = all.position(|(_, is)| is(&flow.history, direction, chunk, judged));
                    kind.map(|nth| nth + EXPLAINED.len())
                };
                let of_tcp = EXPLAINED.iter().position(|(_, is)| match sent {
                    Sent::Tcp(flags) => is(&flow.history, direction, flags, judged),
                    // The kernel knows a connection that the groups do not, or the other way round.
                    Sent::Error(6) => is(&flow.history, direction, ACK, judged),
                    _ => false,
                });
                let kind = match sent {
                    Sent::Sctp(chunk, _) => of_sctp(chunk),
                    Sent::Error(132) => of_sctp(DATA),
                    _ => of_tcp,
                };
                match kind {
                    Some(kind) => explained[kind] += 1,
                    None => faults.push(format!("{flow:?} {rules:?}\n  {}", told.join("\n  "))),
                }
            }
        }
    }
    println!("{compared} packets, {passed} pass, {} differ without a reason", faults.len());
    for (name, count) in names.iter().zip(explained) {
        println!("{count} {name}");
        assert!(count > 0 || packets < 1_000_000, "a reason for nothing: {name}");
    }
    faults.sort_by_key(|fault| fault.len());
    faults.truncate(20);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The guest's host or a peer, with a network stack and programs of its own. Its frames go through both judges.
struct Host {
    namespace: Namespace,
    tap: [Tap; 1],
}

/// Addresses of the guest and of the peer.
const V4: [&str; 2] = ["10.0.0.1", "10.255.0.1"];
const V6: [&str; 2] = ["fd00::1", "fd01::1"];

impl Host {
    fn start(nth: usize) -> Self {
        let (v4, v6, far) = (V4[nth], V6[nth], nth + 1);
        let (router4, router6) = (v4.replace("0.1", "0.254"), v6.replace("::1", "::fe"));
        let prepare = move || {
            run(&format!(
                "echo 0 > /proc/sys/net/ipv6/conf/host0/accept_dad; ip link set lo up; ip link set host0 up
                ip addr add {v4}/24 dev host0; ip -6 addr add {v6}/64 dev host0 nodad
                ip neigh add {router4} dev host0 lladdr 02:00:00:00:00:0{far} nud permanent
                ip neigh add {router6} dev host0 lladdr 02:00:00:00:00:0{far} nud permanent
                ip route add default via {router4}; ip -6 route add default via {router6}"
            ));
        };
        let (namespace, tap) = Namespace::with([("host0", HOST[nth])], prepare);
        Self { namespace, tap }
    }

    /// A program of this host, which ends with it.
    fn program(&self, command: &str) -> Command {
        let mut program = Command::new("nsenter");
        let net = format!("--net=/proc/{}/ns/net", self.namespace.0.id());
        program.args([&net, "setpriv", "--pdeathsig", "KILL", "sh", "-c", command]);
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        program
    }
}

/// The next frame of a TAP, behind its header.
fn next_frame<'b>(tap: &OwnedFd, bytes: &'b mut [u8]) -> Option<&'b [u8]> {
    match rustix::io::read(tap, &mut *bytes) {
        Ok(len) => Some(&bytes[..len]),
        Err(Errno::AGAIN) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A program, its command, and whether the rules allow its connection.
const ASKED: [(usize, &str, bool); 18] = [
    (0, "iperf3 -c PEER -n 20M", true),
    (0, "iperf3 -c PEER -n 20M -R", true),
    (0, "iperf3 -c PEER -n 20M -P 4", true),
    (0, "iperf3 -c PEER -n 2M -u -b 50M", true),
    (0, "iperf3 -c PEER -n 2M -u -b 50M -R", true),
    (0, "curl -sfm 5 http://URL:8080/file", true),
    (0, "curl -sfm 5 http://URL:81/file", false),
    (0, "dig +tries=1 +time=2 @PEER name.example AAAA", true),
    (0, "dig +tcp +tries=1 +time=2 @PEER name.example", true),
    (0, "busybox ping -c 3 -i 0.1 -W 2 PEER", true),
    // The router is a hop of its own, whose errors neither judge sees.
    (0, "busybox traceroute -n -f 2 -m 2 -q 2 -w 2 PEER | grep -q ' ms'", true),
    (0, "busybox traceroute -I -n -f 2 -m 2 -q 2 -w 2 PEER | grep -q ' ms'", true),
    (1, "curl -sfm 5 http://URL:80/file", true),
    (1, "dig +tries=1 +time=2 @PEER name.example", true),
    (1, "dig +tcp +tries=1 +time=2 @PEER name.example", false),
    (1, "busybox ping -c 3 -i 0.1 -W 2 PEER", true),
    (1, "iperf3 -c PEER -t 1 --connect-timeout 1500", false),
    (1, "curl -sfm 2 http://URL:8080/file", false),
];

#[test]
fn root_programs_reach_each_other_as_by_the_kernels_conntrack() {
    let needs =
        [("nft", "nftables"), ("iperf3", "iperf3"), ("curl", "curl"), ("dig", "bind9-dnsutils")];
    let more = [("dnsmasq", "dnsmasq-base"), ("busybox", "busybox"), ("setpriv", "util-linux")];
    if !weir_testing::is_root("TAPs and nftables in network namespaces")
        || !needs.iter().chain(&more).all(|(program, package)| weir_testing::has(program, package))
    {
        return;
    }
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("file"), vec![7; 3_000_000]).unwrap();
    let kernel = Kernel::start(Rules::OpenOut);
    let hosts = [Host::start(0), Host::start(1)];
    let serve = |host: &Host| {
        let dns = "dnsmasq -k -C /dev/null -R -h --user=root --pid-file= --address=/name.example/192.0.2.7 --address=/name.example/2001:db8::7";
        let web = |port: u16| format!("busybox httpd -f -p {port} -h {}", files.path().display());
        let all = ["iperf3 -s".to_owned(), web(80), web(8080), dns.to_owned()];
        all.map(|command| host.program(&format!("exec {command}")).spawn().unwrap())
    };
    let mut servers = hosts.each_ref().map(serve);
    let asks = hosts.each_ref().map(|host| host.namespace.0.id());
    let ends = AtomicBool::new(false);
    let (compared, found) = std::thread::scope(|scope| {
        let _ends = weir_testing::SetAtEnd(&ends);
        let judges = scope.spawn(|| both_judge(&kernel, &hosts, &ends));
        std::thread::sleep(Duration::from_millis(500));
        let mut found = Vec::new();
        for (nth, command, may) in ASKED {
            for (peer, url) in
                [(V4[1 - nth], V4[1 - nth].to_owned()), (V6[1 - nth], format!("[{}]", V6[1 - nth]))]
            {
                let is_six = peer.contains(':');
                let command = command.replace("PEER", peer).replace("URL", &url);
                let command = match is_six {
                    true => command.replace("traceroute", "traceroute6").replace(" -I", ""),
                    false => command,
                };
                let does = hosts[nth].program(&command).status().unwrap().success();
                if does != may {
                    found.push(format!("{} {command}: {does}", asks[nth]));
                }
            }
        }
        ends.store(true, Ordering::Relaxed);
        (judges.join().unwrap(), found)
    });
    for server in servers.iter_mut().flatten() {
        let _ = server.kill();
        let _ = server.wait();
    }
    let (packets, passed, faults) = compared;
    println!("{packets} packets of programs, {passed} pass, {} differ", faults.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(faults.is_empty(), "{}", faults[..faults.len().min(20)].join("\n"));
    assert!(passed > 1000 && passed < packets, "{passed} of {packets}");
}

/// Passes each frame of the hosts to the kernel and to the groups. Frames that the kernel accepts are delivered.
/// Returns the number of frames, the number that passed, and the frames about which the two differ.
fn both_judge(
    kernel: &Kernel,
    hosts: &[Host; 2],
    ends: &AtomicBool,
) -> (usize, usize, Vec<String>) {
    let policy = Rules::OpenOut.policy();
    let (mut table, mut rows) = (Table::new(1, 0), Rows::default());
    let (mut packets, mut passed, mut faults) = (0, 0, Vec::new());
    let (mut sent, mut came) = (vec![0; 1 << 17], vec![0; 1 << 17]);
    let begun = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for (nth, direction) in [Direction::Out, Direction::In].into_iter().enumerate() {
            let [from, to] = kernel.ends(direction);
            let [own, other] = [&hosts[nth], &hosts[1 - nth]].map(|host| &host.tap[0].queues()[0]);
            for _ in 0..32 {
                let Some(frame) = next_frame(own, &mut sent) else { break };
                is_idle = false;
                let bytes = &frame[12..];
                if bytes[..6] != ROUTER[nth] {
                    continue;
                }
                let now_ns = GROUP_TAKE_UP_NS + 1_000_000_000 + begun.elapsed().as_nanos() as u64;
                let judged = judge((&mut table, &mut rows), &policy, direction, bytes, now_ns);
                assert_eq!(rustix::io::write(from, frame), Ok(frame.len()));
                // A router changes what is before the addresses.
                let at = if bytes[12] == 8 { 26 } else { 22 };
                let mut kernel_passes = false;
                while let Some(frame) = next_frame(to, &mut came) {
                    kernel_passes |= frame.get(12 + at..) == Some(&bytes[at..]);
                    let _ = rustix::io::write(other, frame);
                }
                let passes = matches!(judged, Decision::Passes(_));
                packets += 1;
                passed += usize::from(passes);
                if passes != kernel_passes {
                    faults.push(format!(
                        "{direction:?} {judged:?}: {:02x?}",
                        &bytes[..bytes.len().min(80)]
                    ));
                }
            }
        }
        if is_idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    (packets, passed, faults)
}
