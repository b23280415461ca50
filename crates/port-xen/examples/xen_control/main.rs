//! Sets hash and table of a vif of this domain through the back end's control ring, which no Linux
//! front end does, and checks the queues of frames from a user-space guest. Needs Xen, weir as the
//! back end of an existing vif, and an interface of weir's switch with a socket:
//!
//! ```sh
//! xl network-attach 0 mac=52:54:00:77:00:04,bridge=br0
//! xen_control 0 /run/weir/web0.sock 52:54:00:77:00:03
//! ```
//!
//! Prints a line for each check that passes, `ready` after the last, and stays until the vif is
//! removed. Ends with an error at the first failure.

mod front;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use front::{Front, QUEUES, Received, Result};
use weir_netif::ctrl_type::*;
use weir_netif::message::Extra;
use weir_netif::{CtrlStatus, HASH_TYPES};
use weir_vif::{Options, QueuePair, Vif};
use weir_wire::checksum::ipv4_header_checksum;
use weir_wire::flow::{DEFAULT_KEY, KEY_LEN};
use weir_wire::{Mac, Offload, ethertype};
use weir_xen::DomainId;

/// A TCP flow, and its hash.
struct Flow {
    src: (Ipv4Addr, u16),
    dst: (Ipv4Addr, u16),
    hash: u32,
}

const fn flow(src: [u8; 4], src_port: u16, dst: [u8; 4], dst_port: u16, hash: u32) -> Flow {
    let [a, b, c, d] = src;
    let [e, f, g, h] = dst;
    let (src, dst) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
    Flow { src: (src, src_port), dst: (dst, dst_port), hash }
}

/// Flows of Microsoft's "Verifying the RSS hash calculation", whose key is [`DEFAULT_KEY`].
const FLOWS: [Flow; 5] = [
    flow([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x51cc_c178),
    flow([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xc626_b0ea),
    flow([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0x5c2b_394a),
    flow([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0xafc7_327f),
    flow([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x10e8_28a2),
];

/// Two tables. Both queues are used for those flows in each table, and each flow has different
/// queues in the two tables.
const TABLES: [[u32; 3]; 2] = [[1, 1, 0], [0, 0, 1]];

/// The number of `XEN_NETIF_CTRL_HASH_TYPE_IPV4_TCP`.
const IPV4_TCP: u8 = 1;
/// `XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ`.
const TOEPLITZ: u8 = 1;

/// A reference that no domain has granted.
const NO_GRANT: u32 = 1 << 30;

/// Longest time for the entries of a revised table to move.
const MOVED_WITHIN: Duration = Duration::from_secs(2);

/// A domain that does not exist, for a grant to a third party.
const STRANGER: DomainId = DomainId(7_000);

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [handle, socket, mac] = args.as_slice() else {
        return Err("usage: xen_control HANDLE SOCKET MAC".into());
    };
    let mut front = Front::connect(handle)?;
    println!("connected");
    let mut sender = Sender::connect(socket, mac.parse()?, front.mac()?)?;
    sender.all_come(&mut front, None)?;
    println!("without a hash: frames come, and say none");

    set_up(&mut front)?;
    sender.all_come(&mut front, Some(TABLES[0]))?;
    println!("with a hash: frames come by its queues, and say it");
    refused(&mut front)?;
    sender.all_come(&mut front, Some(TABLES[0]))?;
    println!("what was refused has changed nothing");
    table(&mut front, TABLES[1])?;
    // An entry moves when that reorders nothing, which weir may find only at a later frame.
    let end = Instant::now() + MOVED_WITHIN;
    while let Err(error) = sender.all_come(&mut front, Some(TABLES[1])) {
        if Instant::now() > end {
            return Err(error);
        }
    }
    println!("another table: frames come by its queues");
    println!("ready");
    front.stay()?;
    println!("closed");
    Ok(())
}

/// Makes a request with `bytes` in its page, and checks the answer.
fn sees(
    front: &mut Front,
    what: &str,
    (kind, data): (u16, [u32; 3]),
    bytes: &[u8],
    answer: (CtrlStatus, u32),
) -> Result<()> {
    let got = front.ask(kind, data, bytes)?;
    if (got.status, got.data) != answer {
        return Err(format!("{what}: {got:?}, not {answer:?}").into());
    }
    println!("{what}: {:?} {}", got.status, got.data);
    Ok(())
}

fn words(table: &[u32]) -> Vec<u8> {
    table.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

/// Sets the hash and the first table.
fn set_up(front: &mut Front) -> Result<()> {
    use CtrlStatus::{NotSupported, Success};
    let page = front.page();
    let size = TABLES[0].len() as u32;
    let (get, none) = ((GET_HASH_FLAGS, [0; 3]), (Success, 0));
    sees(front, "hash types without an algorithm", get, &[], (NotSupported, 0))?;
    sees(front, "the algorithm", (SET_HASH_ALGORITHM, [TOEPLITZ.into(), 0, 0]), &[], none)?;
    sees(front, "hash types", get, &[], (Success, HASH_TYPES))?;
    sees(front, "all of them", (SET_HASH_FLAGS, [HASH_TYPES, 0, 0]), &[], none)?;
    let key = (SET_HASH_KEY, [page, KEY_LEN as u32, 0]);
    sees(front, "the key", key, &DEFAULT_KEY, none)?;
    let largest = (GET_HASH_MAPPING_SIZE, [0; 3]);
    sees(front, "the largest table", largest, &[], (Success, 128))?;
    sees(front, "the table's size", (SET_HASH_MAPPING_SIZE, [size, 0, 0]), &[], none)?;
    table(front, TABLES[0])
}

fn table(front: &mut Front, table: [u32; 3]) -> Result<()> {
    let mapping = (SET_HASH_MAPPING, [front.page(), table.len() as u32, 0]);
    sees(front, "the table", mapping, &words(&table), (CtrlStatus::Success, 0))
}

/// Makes invalid and forbidden requests.
fn refused(front: &mut Front) -> Result<()> {
    use CtrlStatus::{BufferOverflow, InvalidParameter, NotSupported};
    let page = front.page();
    let (strangers, _page) = front.sharer.grant(STRANGER, true)?;
    let (strangers, no_queue) = (strangers.0, words(&[0, QUEUES as u32]));
    for (what, kind, data, status) in [
        ("an algorithm that is none", SET_HASH_ALGORITHM, [2, 0, 0], InvalidParameter),
        ("a hash type that is none", SET_HASH_FLAGS, [0x10, 0, 0], InvalidParameter),
        ("a key too long", SET_HASH_KEY, [page, KEY_LEN as u32 + 1, 0], BufferOverflow),
        ("a key in no page", SET_HASH_KEY, [NO_GRANT, 40, 0], InvalidParameter),
        ("a key in a stranger's page", SET_HASH_KEY, [strangers, 40, 0], InvalidParameter),
        ("a table too large", SET_HASH_MAPPING_SIZE, [129, 0, 0], InvalidParameter),
        ("more entries than a table has", SET_HASH_MAPPING, [page, 129, 0], BufferOverflow),
        ("entries beyond the table", SET_HASH_MAPPING, [page, 1, 3], InvalidParameter),
        ("entries in no page", SET_HASH_MAPPING, [NO_GRANT, 2, 0], InvalidParameter),
        ("a queue that is none", SET_HASH_MAPPING, [page, 2, 0], InvalidParameter),
        ("static grants", 8, [page, 1, 0], NotSupported),
        ("no such type", u16::MAX, [0; 3], NotSupported),
    ] {
        sees(front, what, (kind, data), &no_queue, (status, 0))?;
    }
    Ok(())
}

/// A guest in user space.
struct Sender {
    _vif: Vif,
    pair: QueuePair,
    from: Mac,
    to: Mac,
}

impl Sender {
    fn connect(socket: &str, from: Mac, to: Mac) -> Result<Self> {
        let mut vif = Vif::connect(socket, &Options::new(from))?;
        let pair = vif.queue_pairs().remove(0);
        Ok(Self { _vif: vif, pair, from, to })
    }

    /// Sends a segment of each flow, and checks its arrival. With `table`, the segment must arrive
    /// at the queue of its hash, and with that hash. Without a table, it may arrive at any queue,
    /// and without a hash.
    fn all_come(&mut self, front: &mut Front, table: Option<[u32; 3]>) -> Result<()> {
        FLOWS.iter().try_for_each(|flow| self.comes(front, flow, table))
    }

    fn comes(&mut self, front: &mut Front, flow: &Flow, table: Option<[u32; 3]>) -> Result<()> {
        let frame = segment(self.from, self.to, flow);
        self.pair.send(&frame, &Offload::NONE)?;
        self.pair.flush();
        let Received { queue, frame: came, packet } = front.receive()?;
        let (value, entries) = (flow.hash, TABLES[0].len());
        let wanted = table.map_or(queue, |table| table[value as usize % entries] as usize);
        let hash = Extra::Hash { kind: IPV4_TCP, algorithm: TOEPLITZ, value };
        let extras: Vec<_> = table.map(|_| hash).into_iter().collect();
        let same = came == frame && !packet.damaged;
        if !same || queue != wanted || packet.extras != extras {
            return Err(format!(
                "queue {queue}, not {wanted}; whole: {same}; {packet:x?}, not {extras:x?}"
            )
            .into());
        }
        Ok(())
    }
}

/// Builds a TCP segment. Nobody checks its checksum.
fn segment(from: Mac, to: Mac, flow: &Flow) -> Vec<u8> {
    const TCP: u8 = 6;
    const TCP_LEN: usize = 20;
    const LEN: u8 = 60;
    let mut ip = [0x45, 0, 0, LEN, 0, 0, 0, 0, 64, TCP, 0, 0].to_vec();
    let ((src, src_port), (dst, dst_port)) = (flow.src, flow.dst);
    ip.extend([src.octets(), dst.octets()].concat());
    let checksum = ipv4_header_checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut tcp = [0; TCP_LEN];
    tcp[..2].copy_from_slice(&src_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&dst_port.to_be_bytes());
    tcp[12] = (TCP_LEN as u8 / 4) << 4;
    let payload = [0xa5; 20];
    [&to.0[..], &from.0, &ethertype::IPV4.to_be_bytes(), &ip, &tcp, &payload].concat()
}
