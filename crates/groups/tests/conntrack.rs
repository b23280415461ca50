//! The same packets through the groups of an interface, and through the kernel's nf_conntrack with the same rules. Each
//! packet passes both or neither, or [`EXPLAINED`] has the reason (docs/design/filters.md#0058).
//!
//! The kernel routes between two TAPs in its own network namespace: the guest's and the peers'.
//! `PACKETS` in the environment is the number of packets, `SEED` that of the first case.

use std::collections::BTreeMap;
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
/// Flags of explicit congestion notification (RFC 3168).
const ECE: u8 = 64;
const CWR: u8 = 128;

/// MAC addresses of the TAPs, and of the hosts behind them.
const ROUTER: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const HOST: [[u8; 6]; 2] = [[2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]];

/// Packets of a case. No other case has the same flows.
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
            // Each ICMP packet without a state is judged by itself.
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
        with_rules(&format!(
            "{outward}
            iifname t1 ct state new tcp dport 80 accept
            iifname t1 ct state new sctp dport 80 accept
            iifname t1 ct state new udp dport 53 accept
            iifname t1 icmp type echo-request accept
            iifname t1 icmpv6 type echo-request accept"
        ))
    }
}

/// A ruleset of nftables that lets connections go on, and otherwise has these rules.
fn with_rules(rules: &str) -> String {
    format!(
        "table inet groups {{
            chain forward {{
                type filter hook forward priority 0; policy drop;
                ct state established,related accept
                {rules}
            }}
        }}\n"
    )
}

fn run(command: &str) {
    let output = Command::new("sh").args(["-ec", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A network namespace, which ends with this value.
struct Namespace(Child);

impl Namespace {
    /// A namespace with TAPs of these names and addresses, after `prepare` has run in it.
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
    fn start(ruleset: &str) -> Self {
        let ruleset = ruleset.to_owned();
        let (namespace, taps) = Namespace::with(
            [("t0", ROUTER[0]), ("t1", ROUTER[1])],
            move || {
                run(
                "for key in ipv4.ip_forward ipv6.conf.all.forwarding netfilter.nf_conntrack_tcp_be_liberal; do
                    echo 1 > /proc/sys/net/$(echo $key | tr . /); done
                for key in ipv4.conf.all.rp_filter ipv4.conf.t0.rp_filter ipv4.conf.t1.rp_filter \
                    netfilter.nf_conntrack_checksum ipv6.conf.t0.accept_dad ipv6.conf.t1.accept_dad; do
                    echo 0 > /proc/sys/net/$(echo $key | tr . /); done
                for key in ipv4.ipfrag_high_thresh netfilter.nf_conntrack_frag6_high_thresh; do
                    echo 400000000 > /proc/sys/net/$(echo $key | tr . /); done
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
                nft.stdin.take().unwrap().write_all(ruleset.as_bytes()).unwrap();
                assert!(nft.wait().unwrap().success());
            },
        );
        Self { _namespace: namespace, taps }
    }

    /// The TAPs by which frames of this direction come in and leave.
    fn ends(&self, direction: Direction) -> [&OwnedFd; 2] {
        let [guest, peers] = [&self.taps[0].queues()[0], &self.taps[1].queues()[0]];
        match direction {
            Direction::Out => [guest, peers],
            Direction::In => [peers, guest],
        }
    }

    /// True if the kernel lets these frames of a packet pass. The kernel has decided by the time
    /// the last frame is written.
    fn passes(&self, direction: Direction, frames: &[Part]) -> bool {
        let [from, to] = self.ends(direction);
        let mut passes = false;
        for Part { frame, .. } in frames {
            let sent = [&VnetHdr::default().to_bytes(), &frame[..]].concat();
            assert_eq!(rustix::io::write(from, &sent), Ok(sent.len()));
            // A router changes what is before the addresses, and joins fragments or cuts them in another way.
            let at = if frame[12] == 8 { 26 } else { 22 };
            let until = match (frames.len(), frame[12]) {
                (1, _) => frame.len(),
                (_, 8) => 34,
                _ => 54,
            };
            let mut bytes = [0; 2048];
            while let Some(out) = next_frame(to, &mut bytes) {
                let is_it = frames.len() > 1 || out.len() == 12 + frame.len();
                passes |= is_it && out.get(12 + at..12 + until) == Some(&frame[at..until]);
            }
        }
        passes
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

/// The parts of an IP header beside addresses and protocol.
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    /// IPv4's options, or IPv6's options for each hop.
    has_options: bool,
    /// The datagram's number, the fragment's first byte, and whether more fragments follow.
    part: Option<(u16, u16, bool)>,
}

/// Options of IPv6 that say nothing, before a header of this protocol.
fn padding(next: u8) -> [u8; 8] {
    [next, 0, 1, 4, 0, 0, 0, 0]
}

fn ip(src: IpAddr, dst: IpAddr, protocol: u8, payload: &[u8], header: Header) -> Vec<u8> {
    let Header { has_options, part } = header;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let options: &[u8] = if has_options { &[1, 1, 1, 0] } else { &[] };
            let len = ((20 + options.len() + payload.len()) as u16).to_be_bytes();
            let first = 0x45 + (options.len() / 4) as u8;
            let (id, start, more) = part.unwrap_or((7, 0, false));
            let ([i0, i1], [s0, s1]) =
                (id.to_be_bytes(), ((start / 8) | (u16::from(more) << 13)).to_be_bytes());
            let mut packet = vec![first, 0, len[0], len[1], i0, i1, s0, s1, 64, protocol, 0, 0];
            packet.extend(src.octets().iter().chain(&dst.octets()).chain(options));
            let sum = checksum(&packet);
            packet[10..12].copy_from_slice(&sum);
            packet.extend(payload);
            packet
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (mut next, mut front) = (protocol, Vec::new());
            if let Some((id, start, more)) = part {
                let ([i0, i1], [s0, s1]) =
                    (id.to_be_bytes(), (start | u16::from(more)).to_be_bytes());
                front = vec![next, 0, s0, s1, 0, 0, i0, i1];
                next = 44;
            }
            if has_options {
                front.splice(0..0, padding(next));
                next = 0;
            }
            let len = ((front.len() + payload.len()) as u16).to_be_bytes();
            let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], next, 64];
            packet.extend(src.octets().iter().chain(&dst.octets()).chain(&front).chain(payload));
            packet
        }
        _ => unreachable!("two families"),
    }
}

/// A frame of a packet: the whole packet, or a fragment with the place of its payload.
struct Part {
    start: usize,
    end: usize,
    /// The length of the whole packet's payload.
    len: usize,
    frame: Vec<u8>,
}

/// A packet, as a report of a difference shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Tcp(u8),
    /// An RST whose sequence number differs from the right one by this much.
    Reset(i8),
    /// A chunk of SCTP, and the difference of the verification tag from the right one.
    Sctp(u8, u32),
    /// Two chunks of SCTP in one packet.
    Bundle(u8, u8),
    /// A datagram of this protocol: of UDP, or of another one.
    Datagram(u8),
    /// The same datagram from another port of its sender.
    Stray(u8),
    Query,
    Answer,
    /// ICMP's query for a timestamp, or the answer.
    Stamp(bool),
    /// ICMP's query for an address mask, or the answer, which RFC 6918 has abolished.
    Mask(bool),
    /// An ICMP error about a packet of TCP, of UDP, of SCTP or a query.
    Error(u8),
    /// The same error, with a peculiarity.
    Odd(u8, Odd),
    /// A datagram of UDP or a segment of TCP in fragments.
    Parts(u8, Cut),
    /// A packet whose header states more or fewer bytes than there are.
    False(False),
}

/// A peculiarity of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    /// The error comes from a router on the way.
    Router,
    /// The error quotes a packet of its own sender.
    Own,
    /// The error goes to another host than the one that has sent the quoted packet.
    Elsewhere,
    /// The error quotes a fragment behind the first one.
    Fragment,
    /// The error quotes a packet with options or extension headers.
    Options,
    /// The error quotes another ICMP error.
    Nested,
    /// The error quotes as much as an IP header and two ports.
    Short,
    /// The error is of another type: too big, time exceeded, or a problem of a parameter.
    Type(u8),
    /// The error is a redirect, which IPv4 has among its errors.
    Redirect,
}

/// The way in which a packet is cut into fragments and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    InOrder,
    /// A later fragment comes first. Hosts send fragments in order, but networks may change the
    /// order.
    LaterFirst,
    /// The second fragment begins before the end of the first one, and the correct second fragment
    /// comes behind it.
    Overlap,
    /// The second fragment comes twice.
    Twice,
    /// The first fragment ends within TCP's header.
    Tiny,
    /// The last fragment does not come.
    Missing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum False {
    /// UDP says more bytes than there are.
    UdpLong,
    /// UDP says fewer bytes than its header has.
    UdpShort,
    /// TCP's header is longer than the packet.
    TcpLong,
    /// TCP's header is shorter than any.
    TcpShort,
}

impl Sent {
    /// The kind of the packet, as in [`KINDS`].
    fn kind(self) -> &'static str {
        match self {
            Self::Tcp(_) => "TCP",
            Self::Reset(_) => "RST with another sequence number",
            Self::Sctp(..) => "SCTP",
            Self::Bundle(..) => "two chunks of SCTP",
            Self::Datagram(17) => "UDP",
            Self::Datagram(136) => "UDP-Lite",
            Self::Datagram(33) => "DCCP",
            Self::Datagram(47) => "GRE",
            Self::Datagram(_) => "ESP",
            Self::Stray(_) => "from another port",
            Self::Query | Self::Answer => "echo",
            Self::Stamp(_) | Self::Mask(_) => "other query of ICMP",
            Self::Error(_) => "ICMP error",
            Self::Odd(..) => "peculiar ICMP error",
            Self::Parts(6, _) => "TCP in fragments",
            Self::Parts(..) => "UDP in fragments",
            Self::False(_) => "false length",
        }
    }
}

/// Kinds of packets. The number says among how many packets of a long run one must be of the kind.
const KINDS: [(&str, usize); 17] = [
    ("TCP", 4),
    ("RST with another sequence number", 400),
    ("SCTP", 10),
    ("two chunks of SCTP", 400),
    ("UDP", 100),
    ("UDP-Lite", 400),
    ("DCCP", 400),
    ("GRE", 400),
    ("ESP", 400),
    ("from another port", 400),
    ("echo", 100),
    ("other query of ICMP", 400),
    ("ICMP error", 50),
    ("peculiar ICMP error", 50),
    ("TCP in fragments", 100),
    ("UDP in fragments", 100),
    ("false length", 400),
];

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
    /// The guest opens the flow, if all goes well.
    by_guest: bool,
    /// Some packets have options of IP, and some segments also options of TCP.
    has_options: bool,
    /// The number of packets.
    count: u16,
    /// Packets that come before others.
    script: &'static [(Direction, Sent)],
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
    /// An INIT ACK of SCTP passed, and then another one.
    is_answered: bool,
    is_answered_again: bool,
    /// An INIT or a COOKIE ECHO of SCTP passed after the first one. It was sent by an end that has
    /// begun anew, or in that end's name.
    is_anew: bool,
}

impl History {
    /// Adds a segment that both judges let pass, or that neither does.
    fn add(&mut self, direction: Direction, flags: u8, judged: Decision) {
        let is_ended = self.fins != [0; 2] || self.resets > 0;
        self.is_reopened |= opens(flags) && is_ended;
        if let Decision::Passes(_) = judged {
            self.is_taken_up |= is_by_rules(judged) && !opens(flags);
            self.is_agreed |= agrees(flags);
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
    /// Adds a packet of SCTP that both judges let pass, or that neither does.
    fn add_sctp(&mut self, direction: Direction, chunk: u8, judged: Decision) {
        if let Decision::Passes(_) = judged {
            self.is_taken_up |= is_by_rules(judged) && chunk != INIT;
            let has_cookie = chunk == COOKIE_ECHO && self.opener == Some(direction);
            self.is_anew |= chunk == INIT && self.opener.is_some() || has_cookie && self.is_agreed;
            self.is_agreed |= chunk == COOKIE_ECHO;
            self.is_answered_again |= chunk == INIT_ACK && self.is_answered;
            self.is_answered |= chunk == INIT_ACK;
            self.opener = self.opener.or(Some(direction));
        }
    }
}

fn opens(flags: u8) -> bool {
    flags & (SYN | ACK) == SYN
}

fn agrees(flags: u8) -> bool {
    flags & (SYN | ACK | FIN | RST | URG) == SYN | ACK
}

fn is_by_rules(judged: Decision) -> bool {
    matches!(judged, Decision::Passes(Why::Rule(_) | Why::Default))
}

/// A difference that the design page explains: its name there, and the function that recognizes it.
type Explained = (&'static str, fn(&History, Direction, u8, Decision) -> bool);

const EXPLAINED: [Explained; 6] = [
    // State is lost with weir. A connection continues in its middle, and is taken up at its next
    // segment, whatever that is.
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
        history.is_crossed && agrees(flags) && judged == Decision::Passes(Why::Established)
    }),
    // The kernel takes a SYN of a live connection, and its answer, for a new handshake.
    ("SYN and ACK of the opener after it has sent SYN again", |history, _, flags, judged| {
        history.is_repeated && agrees(flags) && judged == Decision::Refused(Why::Invalid)
    }),
    // The kernel keeps such a connection for 10 s if the other end has sent an ACK in place of SYN and ACK.
    ("after a RST of a half-open connection", |history, _, _, judged| {
        history.resets > 0 && judged == Decision::Refused(Why::NoRule)
    }),
    // The kernel waits for an answer before it takes the SYN for a new connection, unless it has seen the end of the
    // old one. It forgets the old one even if the rules refuse the SYN.
    ("after a SYN on an ended connection", |history, _, _, _| history.is_reopened),
];

/// As [`Explained`], for whatever does not depend on what came before.
type ExplainedOther = (&'static str, fn(Sent, Decision) -> bool);

const EXPLAINED_OTHERS: [ExplainedOther; 4] = [
    // Nothing waits here until all fragments have come.
    ("first fragment without all headers, or behind another one", |sent, _| {
        matches!(sent, Sent::Parts(_, Cut::Tiny | Cut::LaterFirst))
    }),
    // Whoever receives the packet drops it.
    ("false length of UDP or of TCP's header", |sent, _| matches!(sent, Sent::False(_))),
    // A redirect changes the receiver's routes: it reports nothing about the connection.
    ("redirect about a connection", |sent, _| matches!(sent, Sent::Odd(_, Odd::Redirect))),
    // The receiver's TCP knows whether the number is right, and the groups do not.
    ("RST with another sequence number", |sent, judged| {
        matches!(sent, Sent::Reset(_)) && judged == Decision::Passes(Why::Established)
    }),
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

const EXPLAINED_SCTP: [ExplainedSctp; 5] = [
    // weir takes SCTP up as it does TCP. The kernel takes up an association at INIT ACK, but not at
    // DATA or SACK.
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
    // The opener takes no notice of such an INIT ACK (RFC 9260 §5.2.3), and the kernel of its tag.
    ("after an INIT ACK behind the first one", |history, _, _, _| history.is_answered_again),
];

/// A conversation that meets a difference: the reason's name, the guest's port and the peer's, and packets, of which the
/// judges differ about the last one. The judges have the rules of [`Rules::OpenOut`].
type Directed = (&'static str, (u16, u16), &'static [(Direction, Sent)]);

const OUTWARD: (u16, u16) = (5000, 443);
const INWARD: (u16, u16) = (80, 4000);

const DIRECTED: [Directed; 15] = {
    use Direction::{In, Out};
    use Sent::{Odd as OddError, Parts, Reset, Sctp, Tcp};
    const SYN_ACK: u8 = SYN | ACK;
    [
        ("taken up in the middle", OUTWARD, &[(Out, Tcp(FIN | ACK))]),
        (
            "SYN against a connection",
            INWARD,
            &[(Out, Tcp(SYN)), (In, Tcp(SYN_ACK)), (Out, Tcp(ACK)), (In, Tcp(SYN))],
        ),
        (
            "SYN and ACK again after SYNs of both ends",
            INWARD,
            &[
                (Out, Tcp(SYN)),
                (In, Tcp(SYN)),
                (Out, Tcp(SYN_ACK)),
                (In, Tcp(ACK)),
                (Out, Tcp(SYN_ACK)),
            ],
        ),
        (
            "SYN and ACK of the opener after it has sent SYN again",
            OUTWARD,
            &[
                (Out, Tcp(SYN)),
                (In, Tcp(SYN_ACK)),
                (Out, Tcp(ACK)),
                (Out, Tcp(SYN)),
                (In, Tcp(SYN_ACK)),
                (Out, Tcp(SYN_ACK)),
            ],
        ),
        (
            "after a RST of a half-open connection",
            OUTWARD,
            &[(Out, Tcp(SYN)), (In, Tcp(ACK)), (Out, Tcp(RST)), (In, Tcp(SYN_ACK))],
        ),
        (
            "after a SYN on an ended connection",
            OUTWARD,
            &[
                (Out, Tcp(SYN)),
                (In, Tcp(SYN_ACK)),
                (In, Tcp(RST | ACK)),
                (Out, Tcp(ACK)),
                (Out, Tcp(SYN)),
                (Out, Tcp(ACK)),
            ],
        ),
        ("SCTP taken up in the middle", OUTWARD, &[(Out, Sctp(SACK, 0))]),
        (
            "INIT against an association",
            OUTWARD,
            &[
                (Out, Sctp(INIT, 0)),
                (In, Sctp(INIT_ACK, 0)),
                (Out, Sctp(COOKIE_ECHO, 0)),
                (In, Sctp(INIT, 0)),
            ],
        ),
        (
            "after an INIT behind the first one",
            OUTWARD,
            &[
                (Out, Sctp(INIT, 0)),
                (In, Sctp(INIT_ACK, 0)),
                (Out, Sctp(COOKIE_ECHO, 0)),
                (In, Sctp(INIT_ACK, 1)),
            ],
        ),
        (
            "after an INIT ACK behind the first one",
            OUTWARD,
            &[
                (Out, Sctp(INIT, 0)),
                (In, Sctp(INIT_ACK, 0)),
                (Out, Sctp(COOKIE_ECHO, 0)),
                (In, Sctp(INIT, 1)),
                (In, Sctp(INIT_ACK, 0)),
                (Out, Sctp(DATA, 0)),
            ],
        ),
        (
            "another tag of HEARTBEAT or SHUTDOWN ACK",
            OUTWARD,
            &[(Out, Sctp(INIT, 0)), (Out, Sctp(HEARTBEAT_ACK, 0))],
        ),
        (
            "first fragment without all headers, or behind another one",
            OUTWARD,
            &[(Out, Parts(6, Cut::Tiny))],
        ),
        ("false length of UDP or of TCP's header", OUTWARD, &[(Out, Sent::False(False::UdpLong))]),
        (
            "redirect about a connection",
            OUTWARD,
            &[(Out, Tcp(SYN)), (In, OddError(6, Odd::Redirect))],
        ),
        (
            "RST with another sequence number",
            OUTWARD,
            &[(Out, Tcp(SYN)), (In, Tcp(SYN_ACK)), (Out, Tcp(ACK)), (In, Reset(-1))],
        ),
    ]
};

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

const FLAGS: [u8; 22] = [
    SYN,
    SYN,
    SYN | ECE | CWR,
    SYN,
    SYN | ACK,
    SYN | ACK | ECE,
    ACK | CWR,
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
        self.count += 1;
        if let [first, rest @ ..] = self.script {
            self.script = rest;
            // An end that begins anew has another tag.
            if let (from, Sent::Sctp(INIT, 1)) = *first {
                self.tags[usize::from(from == Direction::Out)] += 1;
            }
            return *first;
        }
        let direction = |out| if out { Direction::Out } else { Direction::In };
        let any = direction(random.below(2) == 0);
        match self.protocol {
            Protocol::Sctp => match random.below(30) {
                0 => (any, Sent::Error(132)),
                1 => (any, Sent::Odd(132, any_odd(random))),
                2 => {
                    let pairs =
                        [(COOKIE_ECHO, DATA), (COOKIE_ACK, SACK), (SACK, DATA), (SACK, SHUTDOWN)];
                    let (first, second) = random.one_of(&pairs);
                    (any, Sent::Bundle(first, second))
                }
                3..=8 => {
                    let wrong = u32::from(random.below(4) == 0);
                    let chunk = match random.below(6) {
                        0 => ABORT,
                        _ => SCTP_SCRIPT[random.below(SCTP_SCRIPT.len())].1,
                    };
                    // Some ends begin anew with another tag.
                    let own = usize::from(any == Direction::Out);
                    self.tags[own] += u32::from(chunk == INIT && random.below(2) == 0);
                    (any, Sent::Sctp(chunk, wrong))
                }
                _ => {
                    let (opener, chunk) = SCTP_SCRIPT[self.next % SCTP_SCRIPT.len()];
                    self.next += 1;
                    (direction(opener == self.by_guest), Sent::Sctp(chunk, 0))
                }
            },
            Protocol::Others => {
                let protocol = random.one_of(&[17, 17, 17, 17, 136, 33, 47, 50]);
                let sent = match random.below(20) {
                    0..7 => Sent::Datagram(protocol),
                    7 => Sent::Stray(random.one_of(&[17, 136])),
                    8 | 9 => Sent::Query,
                    10 => Sent::Answer,
                    11 => random.one_of(&[Sent::Stamp(true), Sent::Stamp(false), Sent::Mask(true)]),
                    12 => Sent::Error(17),
                    13 => Sent::Error(1),
                    14 | 15 => Sent::Odd(random.one_of(&[17, 1]), any_odd(random)),
                    16 => Sent::False(random.one_of(&[False::UdpLong, False::UdpShort])),
                    _ => {
                        let all = [Cut::InOrder, Cut::InOrder, Cut::Twice, Cut::Overlap];
                        let more = [Cut::LaterFirst, Cut::Missing];
                        Sent::Parts(17, random.one_of(&[&all[..], &more].concat()))
                    }
                };
                (any, sent)
            }
            Protocol::Tcp => match random.below(64) {
                0..3 => (any, Sent::Error(6)),
                3 => (any, Sent::Odd(6, any_odd(random))),
                4 => (any, Sent::Reset(random.one_of(&[-1, 1]))),
                5 | 6 => {
                    let all = [Cut::InOrder, Cut::Twice, Cut::Overlap];
                    let more = [Cut::LaterFirst, Cut::Missing, Cut::Tiny];
                    (any, Sent::Parts(6, random.one_of(&[&all[..], &more].concat())))
                }
                7 if random.below(2) == 0 => {
                    (any, Sent::False(random.one_of(&[False::TcpLong, False::TcpShort])))
                }
                7..23 => (any, Sent::Tcp(random.one_of(&FLAGS))),
                _ => {
                    let (opener, flags) = SCRIPT[self.next % SCRIPT.len()];
                    self.next += 1;
                    (direction(opener == self.by_guest), Sent::Tcp(flags))
                }
            },
        }
    }

    fn is_v6(&self) -> bool {
        self.guest.is_ipv6()
    }

    /// The frames of a packet.
    fn frames(&self, direction: Direction, sent: Sent) -> Vec<Part> {
        let [src, dst] = self.ends(direction, sent);
        let (mut protocol, mut payload) = self.payload(direction, sent);
        // Groups read headers in the first 128 bytes only.
        let is_long = matches!(sent, Sent::Odd(_, Odd::Options));
        let has_options = self.has_options && self.count.is_multiple_of(3) && !is_long;
        if has_options && self.is_v6() {
            // Options for the destination are in the part that is cut.
            payload.splice(0..0, padding(protocol));
            protocol = 60;
        }
        let (from, to) = match direction {
            Direction::Out => (HOST[0], ROUTER[0]),
            Direction::In => (HOST[1], ROUTER[1]),
        };
        let ethertype: [u8; 2] = if self.is_v6() { [0x86, 0xdd] } else { [8, 0] };
        let frame = |payload: &[u8], part| {
            let header = Header { has_options, part };
            [&to[..], &from, &ethertype, &ip(src, dst, protocol, payload, header)].concat()
        };
        let Sent::Parts(_, cut) = sent else {
            let (end, frame) = (payload.len(), frame(&payload, None));
            return vec![Part { start: 0, end, len: end, frame }];
        };
        let (end, front) = (payload.len(), if protocol == 60 { 8 } else { 0 });
        let second = front + if cut == Cut::Tiny { 8 } else { 24 };
        let third = second + 8;
        let ranges = match cut {
            Cut::InOrder | Cut::Tiny => vec![(0, second), (second, third), (third, end)],
            Cut::LaterFirst => vec![(second, third), (0, second), (third, end)],
            Cut::Overlap => vec![(0, second), (second - 8, third), (second, third), (third, end)],
            Cut::Twice => vec![(0, second), (second, third), (second, third), (third, end)],
            Cut::Missing => vec![(0, second), (second, third)],
        };
        let part = |(start, until): (usize, usize)| Part {
            start,
            end: until,
            len: end,
            frame: frame(&payload[start..until], Some((self.count, start as u16, until < end))),
        };
        ranges.into_iter().map(part).collect()
    }

    /// Source and destination.
    fn ends(&self, direction: Direction, sent: Sent) -> [IpAddr; 2] {
        let mut ends = match direction {
            Direction::Out => [self.guest, self.peer],
            Direction::In => [self.peer, self.guest],
        };
        // Another host of the guest's network, or of the peer's.
        let neighbour = |address| match address {
            IpAddr::V4(address) => IpAddr::V4((address.to_bits() + 128).into()),
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() + 128).into()),
        };
        match sent {
            Sent::Odd(_, Odd::Router) => ends[0] = neighbour(ends[0]),
            Sent::Odd(_, Odd::Elsewhere) if direction == Direction::Out => {
                ends[1] = neighbour(ends[1]);
            }
            _ => {}
        }
        ends
    }

    fn payload(&self, direction: Direction, sent: Sent) -> (u8, Vec<u8>) {
        let out = direction == Direction::Out;
        let mut ports = match out {
            true => [self.own, self.other],
            false => [self.other, self.own],
        };
        if let Sent::Stray(_) = sent {
            ports[0] += 1;
        }
        let ports = ports.map(u16::to_be_bytes).concat();
        let id = self.own.to_be_bytes();
        let v6 = self.is_v6();
        let icmp = |v4, with| if v6 { (58, with) } else { (1, v4) };
        let segment = |flags: u8, number: u8, header: u8, more: &[u8]| {
            let rest = [0, 0, 0, number, 0, 0, 0, 100, header, flags, 1, 0, 0, 0, 0, 0];
            (6, [&ports[..], &rest, more].concat())
        };
        match sent {
            Sent::Tcp(flags) => {
                // The numbers are those of a connection without data.
                let number = if flags & SYN != 0 { 99 } else { 100 };
                match self.has_options {
                    false => segment(flags, number, 0x50, &[]),
                    // The options are the maximum segment size, SACK, timestamps and the window
                    // scale.
                    true if flags & SYN != 0 => {
                        let options =
                            [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
                        segment(flags, number, 0xa0, &options)
                    }
                    // The options are timestamps, and a block that arrived out of order.
                    true => {
                        let options = [
                            1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 5, 10, 0, 0, 0, 100, 0, 0,
                            0, 100,
                        ];
                        segment(flags, number, 0xb0, &options)
                    }
                }
            }
            Sent::Reset(by) => segment(RST, 100_u8.wrapping_add_signed(by), 0x50, &[]),
            Sent::Parts(6, _) => segment(ACK | PSH, 100, 0x50, &[7; 40]),
            Sent::False(False::TcpLong) => segment(ACK, 100, 0xf0, &[]),
            Sent::False(False::TcpShort) => segment(ACK, 100, 0x40, &[]),
            Sent::Sctp(chunk, wrong) => {
                (132, self.sctp(&ports, (chunk, wrong), &[], usize::from(out)))
            }
            Sent::Bundle(first, second) => {
                let more = chunk_of(second, &[0; 16]);
                (132, self.sctp(&ports, (first, 0), &more, usize::from(out)))
            }
            Sent::Datagram(47) => (47, vec![0, 0, 8, 0, 1, 2, 3, 4]),
            Sent::Datagram(50) => (50, vec![0, 0, 0, 7, 0, 0, 0, 1]),
            Sent::Datagram(33) => (33, [&ports[..], &[3, 0, 0, 0, 0, 0, 0, 1]].concat()),
            // UDP-Lite has no datagrams without a checksum.
            Sent::Datagram(protocol) | Sent::Stray(protocol) => {
                (protocol, [&ports[..], &[0, 8, 0, 1]].concat())
            }
            Sent::Parts(protocol, _) => {
                (protocol, [&ports[..], &[0, 60, 0, 0], &[7; 52][..]].concat())
            }
            Sent::False(False::UdpLong) => (17, [&ports[..], &[0, 9, 0, 0]].concat()),
            Sent::False(False::UdpShort) => (17, [&ports[..], &[0, 7, 0, 0]].concat()),
            Sent::Query => {
                let (protocol, kind) = icmp(8, 128);
                (protocol, [&[kind, 0, 0, 0], &id[..], &[0, 1]].concat())
            }
            Sent::Answer => {
                let (protocol, kind) = icmp(0, 129);
                (protocol, [&[kind, 0, 0, 0], &id[..], &[0, 1]].concat())
            }
            // Neighbours of IPv6 have no such queries, and hosts answer none of that type.
            Sent::Stamp(asks) | Sent::Mask(asks) => {
                let first = if let Sent::Stamp(_) = sent { 13 } else { 17 };
                let (protocol, kind) = icmp(first + u8::from(!asks), 200);
                (protocol, [&[kind, 0, 0, 0], &id[..], &[0, 1], &[0; 12]].concat())
            }
            Sent::Error(about) => self.error(direction, about, None),
            Sent::Odd(about, odd) => self.error(direction, about, Some(odd)),
        }
    }

    /// An ICMP error about a packet of this protocol that has gone the other way.
    fn error(&self, direction: Direction, about: u8, odd: Option<Odd>) -> (u8, Vec<u8>) {
        let about = match about {
            6 => Sent::Tcp(ACK),
            17 => Sent::Datagram(17),
            132 => Sent::Sctp(DATA, 0),
            _ => Sent::Query,
        };
        let v6 = self.is_v6();
        let icmp = |v4, with| if v6 { (58, with) } else { (1, v4) };
        let (protocol, kind) = match odd {
            Some(Odd::Type(nth)) => {
                icmp([3, 11, 12][usize::from(nth % 3)], [2, 3, 4][usize::from(nth % 3)])
            }
            Some(Odd::Redirect) => icmp(5, 1),
            _ => icmp(3, 1),
        };
        let sent = match odd {
            Some(Odd::Own) => direction,
            _ => direction.reverse(),
        };
        let [src, dst] = self.ends(sent, about);
        let (inner, payload) = match odd {
            Some(Odd::Nested) => self.error(direction.reverse(), 17, None),
            _ => self.payload(sent, about),
        };
        let header = Header {
            has_options: odd == Some(Odd::Options),
            part: (odd == Some(Odd::Fragment)).then_some((9, 64, true)),
        };
        // The quote is as short as RFC 792 allows, or shorter.
        let len = if odd == Some(Odd::Short) { 4 } else { 8 };
        let quoted = ip(src, dst, inner, &payload[..len], header);
        (protocol, [&[kind, 1, 0, 0, 0, 0, 0, 0], &quoted[..]].concat())
    }

    fn sctp(&self, ports: &[u8], (chunk, wrong): (u8, u32), more: &[u8], own: usize) -> Vec<u8> {
        let asks = [&self.tags[own].to_be_bytes()[..], &[1; 12]].concat();
        let tag = if chunk == INIT { wrong } else { self.tags[1 - own] + wrong * 1000 };
        [ports, &tag.to_be_bytes(), &[0; 4], &chunk_of(chunk, &asks), more].concat()
    }
}

/// A chunk of SCTP; `value` is that of INIT and INIT ACK.
fn chunk_of(chunk: u8, value: &[u8]) -> Vec<u8> {
    match chunk {
        INIT | INIT_ACK => [&[chunk, 0, 0, 20][..], value].concat(),
        DATA => [&[chunk, 3, 0, 20][..], &[0; 16]].concat(),
        SACK => [&[chunk, 0, 0, 16][..], &[0; 12]].concat(),
        HEARTBEAT | HEARTBEAT_ACK | SHUTDOWN | COOKIE_ECHO => vec![chunk, 0, 0, 8, 0, 0, 0, 0],
        _ => vec![chunk, 0, 0, 4],
    }
}

fn any_odd(random: &mut Random) -> Odd {
    let nth = random.below(3) as u8;
    let first = [Odd::Router, Odd::Own, Odd::Elsewhere, Odd::Fragment, Odd::Options];
    let second = [Odd::Nested, Odd::Short, Odd::Type(nth), Odd::Type(nth), Odd::Redirect];
    random.one_of(&[first, second].concat())
}

/// Flows of a case: two peers that no other case has. The first flow of the first cases is [`DIRECTED`].
fn flows(case: usize, random: &mut Random) -> Vec<Flow> {
    let mut flows = any_flows(case, random);
    if let Some((_, ports, script)) = DIRECTED.get(case - 1) {
        let flow = &mut flows[0];
        (flow.script, flow.has_options) = (script, false);
        (flow.own, flow.other) = *ports;
    }
    flows
}

fn any_flows(case: usize, random: &mut Random) -> Vec<Flow> {
    let [_, a, b, c] = (case as u32).to_be_bytes();
    // IPv6 has its redirects among messages of neighbours.
    let v6 = random.below(2) == 0 && case > DIRECTED.len();
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
            protocol: match random.below(10) {
                0..6 => Protocol::Tcp,
                6 | 7 => Protocol::Sctp,
                _ => Protocol::Others,
            },
            next: 0,
            tags: [100, 200],
            by_guest: own == 5000,
            has_options: random.below(3) == 0,
            count: 0,
            script: &[],
            history: History::default(),
            is_over: false,
        }
    };
    (0..2).map(|nth| flow(nth, random)).collect()
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|it| it.parse().expect("a number"))
}

/// The decision about a frame, as workers make it.
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
    let names = EXPLAINED.iter().map(|(name, _)| *name);
    let names = names.chain(EXPLAINED_SCTP.iter().map(|(name, _)| *name));
    let names: Vec<_> = names.chain(EXPLAINED_OTHERS.iter().map(|(name, _)| *name)).collect();
    let (mut explained, mut faults) = (vec![0; names.len()], BTreeMap::<_, (usize, String)>::new());
    let mut kinds = BTreeMap::new();
    let now_ns = GROUP_TAKE_UP_NS + 1_000_000_000;
    let cases = (packets / 2 / (CASE * 3 / 4)).clamp(1, CASES);
    for round in 0.. {
        if compared >= packets {
            break;
        }
        let rules = if round % 2 == 0 { Rules::OpenOut } else { Rules::ClosedOut };
        let (kernel, policy) = (Kernel::start(&rules.nft()), rules.policy());
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
                if flow.is_over {
                    continue;
                }
                let (direction, sent) = flow.next(&mut random);
                let frames = flow.frames(direction, sent);
                let kernel_passes = kernel.passes(direction, &frames);
                let mut state = (&mut table, &mut rows);
                let judged = judge_all(&mut state, &policy, direction, &frames, now_ns);
                let (judged, passes) = judged;
                compared += 1;
                passed += usize::from(passes);
                *kinds.entry(sent.kind()).or_insert(0) += 1;
                told.push(format!("flow {at} {direction:?} {sent:?} {judged:?}"));
                if passes == kernel_passes {
                    match sent {
                        Sent::Tcp(flags) => flow.history.add(direction, flags, judged),
                        Sent::Reset(_) => flow.history.add(direction, RST, judged),
                        Sent::Parts(6, Cut::InOrder | Cut::Twice) => {
                            flow.history.add(direction, ACK, judged);
                        }
                        // The groups have noted the connection already, and the kernel waits for the rest.
                        Sent::Parts(..) if !passes => flow.is_over = true,
                        Sent::Sctp(chunk, _) | Sent::Bundle(chunk, _) => {
                            flow.history.add_sctp(direction, chunk, judged);
                        }
                        _ => {}
                    }
                    continue;
                }
                flow.is_over = true;
                match explanation(&flow.history, direction, sent, judged) {
                    Some(kind) => explained[kind] += 1,
                    None => {
                        // The shortest way to each difference is kept.
                        let told = format!("{flow:?} {rules:?}\n  {}", told.join("\n  "));
                        let known = faults
                            .entry(format!("{direction:?} {sent:?} {judged:?}"))
                            .or_insert((0, told.clone()));
                        known.0 += 1;
                        if told.len() < known.1.len() {
                            known.1 = told;
                        }
                    }
                }
            }
        }
    }
    let without: usize = faults.values().map(|(count, _)| count).sum();
    println!("{compared} packets, {passed} pass, {without} differ without a reason");
    for (name, count) in names.iter().zip(explained) {
        println!("{count} {name}");
        assert!(count > 0, "a reason for nothing: {name}");
    }
    println!("{kinds:?}");
    let told = faults.iter().map(|(last, (count, told))| format!("{count} {last}: {told}"));
    let told: Vec<_> = told.take(40).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    for (kind, one_in) in KINDS {
        let count = kinds.get(kind).copied().unwrap_or(0);
        assert!(count * one_in >= compared, "{count} packets of {compared} are {kind}");
    }
}

/// The place of the reason for a difference among all names.
fn explanation(
    history: &History,
    direction: Direction,
    sent: Sent,
    judged: Decision,
) -> Option<usize> {
    let (tcp, sctp) = (EXPLAINED.len(), EXPLAINED_SCTP.len());
    if let Some(nth) = EXPLAINED_OTHERS.iter().position(|(_, is)| is(sent, judged)) {
        return Some(tcp + sctp + nth);
    }
    let of_tcp = |flags| EXPLAINED.iter().position(|(_, is)| is(history, direction, flags, judged));
    let of_sctp = |chunk| {
        let nth = EXPLAINED_SCTP.iter().position(|(_, is)| is(history, direction, chunk, judged));
        nth.map(|nth| tcp + nth)
    };
    match sent {
        Sent::Tcp(flags) => of_tcp(flags),
        Sent::Reset(_) => of_tcp(RST),
        // The kernel knows a connection that the groups do not, or the other way round.
        Sent::Error(6) | Sent::Odd(6, _) | Sent::Parts(6, _) => of_tcp(ACK),
        Sent::Sctp(chunk, _) | Sent::Bundle(chunk, _) => of_sctp(chunk),
        Sent::Error(132) | Sent::Odd(132, _) => of_sctp(DATA),
        _ => None,
    }
}

/// The decision about a packet's first bytes, and whether all of it has passed in some fragments.
fn judge_all(
    (table, rows): &mut (&mut Table, &mut Rows),
    policy: &Policy,
    direction: Direction,
    parts: &[Part],
    now_ns: u64,
) -> (Decision, bool) {
    let mut first = Decision::Refused(Why::Fragment);
    let mut came: Vec<(usize, usize)> = Vec::new();
    for Part { start, end, frame, .. } in parts {
        let judged = judge((table, rows), policy, direction, frame, now_ns);
        if *start == 0 {
            first = judged;
        }
        if matches!(judged, Decision::Passes(_)) {
            came.push((*start, *end));
        }
    }
    came.sort_unstable();
    let behind = |until, &(start, end): &(usize, usize)| {
        if start <= until { end.max(until) } else { until }
    };
    (first, came.iter().fold(0, behind) == parts[0].len)
}

/// A frame of a capture by weir, as pcapng has it.
struct Recorded {
    /// The port: the guest's, or the peer's.
    port: usize,
    /// The port has sent the frame. Otherwise the frame has passed, and the port has received it.
    is_sent: bool,
    bytes: Vec<u8>,
}

/// Reads the packets of a capture.
fn recorded(mut blocks: &[u8]) -> Vec<Recorded> {
    const PACKET: usize = 6;
    const FLAGS: usize = 2;
    let mut all = Vec::new();
    while !blocks.is_empty() {
        let word = |at: usize| {
            u32::from_le_bytes(*blocks[at..].first_chunk().expect("a whole block")) as usize
        };
        let (kind, len) = (word(0), word(4));
        if kind == PACKET {
            let (port, captured) = (word(8), word(20));
            let mut option = 28 + captured.next_multiple_of(4);
            while word(option) & 0xffff != FLAGS {
                option += 4 + (word(option) >> 16).next_multiple_of(4);
            }
            let is_sent = word(option + 4) & 3 == 2;
            all.push(Recorded { port, is_sent, bytes: blocks[28..28 + captured].to_vec() });
        }
        blocks = &blocks[len..];
    }
    all
}

/// A frame with a packet of IPv4 as a router gets it. Bytes that were not captured are missing in the packet.
fn for_router(bytes: &[u8], nth: usize) -> Vec<u8> {
    let mut frame = [&ROUTER[nth][..], &HOST[nth], &bytes[12..]].concat();
    let said = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    frame.truncate(14 + said);
    let (len, header) = (frame.len() as u16 - 14, 14 + usize::from(frame[14] & 15) * 4);
    frame[16..18].copy_from_slice(&len.to_be_bytes());
    if frame[23] == 17 && usize::from(len) < said {
        let datagram = frame.len() as u16 - header as u16;
        frame[header + 4..header + 6].copy_from_slice(&datagram.to_be_bytes());
    }
    frame[22] = 64;
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..header]);
    frame[24..26].copy_from_slice(&sum);
    frame
}

/// The rules of the first guest of a system test (`tests/system/src/guests/traffic.rs`). Without the last line they
/// are others.
const OF_GUESTS: &str = "
    iifname t1 ct state new tcp dport {22, 80} accept
    iifname t1 ct state new udp dport 53 accept
    iifname t1 icmp type echo-request accept
    iifname t0 ct state new udp dport {53, 5201} accept
    iifname t0 icmp type echo-request accept
    iifname t0 ct state new tcp dport {443, 5201} accept";

/// The number of frames, the number that passed, and those that the kernel with these rules judges in another way.
fn replayed(all: &[Recorded], rules: &str) -> (usize, usize, Vec<String>) {
    let kernel = Kernel::start(&with_rules(rules));
    run(&format!(
        "nsenter --net=/proc/{}/ns/net sh -ec '
            ip neigh add 10.77.0.1 dev t0 lladdr 02:00:00:00:01:01 nud permanent
            ip neigh add 10.77.0.2 dev t1 lladdr 02:00:00:00:01:02 nud permanent
            ip route add 10.77.0.1/32 dev t0; ip route add 10.77.0.2/32 dev t1'",
        kernel._namespace.0.id()
    ));
    let mut came = [0, 1].map(|port| {
        let received = all.iter().filter(move |it| it.port == port && !it.is_sent);
        received.map(|it| &it.bytes[..]).peekable()
    });
    let (mut compared, mut passed, mut faults) = (0, 0, Vec::new());
    for Recorded { port, bytes, .. } in all.iter().filter(|it| it.is_sent) {
        let passes = came[1 - port].next_if_eq(&&bytes[..]).is_some();
        if bytes[12..14] != [8, 0] {
            assert!(passes || bytes[12..14] != [8, 6], "ARP is refused");
            continue;
        }
        let direction = if *port == 0 { Direction::Out } else { Direction::In };
        let frame = for_router(bytes, *port);
        let kernel_passes = kernel.passes(direction, &[Part { start: 0, end: 0, len: 0, frame }]);
        compared += 1;
        passed += usize::from(passes);
        if passes != kernel_passes {
            faults.push(format!("{direction:?} {passes}: {bytes:02x?}"));
        }
    }
    assert!(came.iter_mut().all(|it| it.peek().is_none()), "a frame came that was not sent");
    (compared, passed, faults)
}

/// A system test records what two guests send each other, of which the first has the rules [`OF_GUESTS`], and names the
/// file in `CAPTURE`.
#[test]
fn root_frames_of_guests_pass_as_by_the_kernels_conntrack() {
    let Some(file) = std::env::var_os("CAPTURE").filter(|file| !file.is_empty()) else {
        println!("skipped: CAPTURE names no capture");
        return;
    };
    let all = recorded(&std::fs::read(file).unwrap());
    let (compared, passed, faults) = replayed(&all, OF_GUESTS);
    println!("{compared} frames of guests, {passed} pass, {} differ", faults.len());
    assert!(faults.is_empty(), "{}", faults[..faults.len().min(20)].join("\n"));
    assert!(passed > 100 && passed + 10 < compared, "{passed} of {compared}");
    let (others, _) = OF_GUESTS.rsplit_once('\n').unwrap();
    let (_, _, faults) = replayed(&all, others);
    assert!(faults.len() > 100, "other rules judge as these: {} differ", faults.len());
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
    // The trace begins at the second hop: the first hop is the router, and neither judge sees the router's errors.
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
    let kernel = Kernel::start(&Rules::OpenOut.nft());
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
