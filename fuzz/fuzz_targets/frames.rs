//! Frames with their virtio-net headers through the whole switch: burst, filters, VLANs, forwarding table, merging,
//! and the replacement of offloads that receivers lack.
//!
//! The input sets up four ports, and is then a sequence of bursts. For any frames of a guest, a receiver gets only
//! packets that it can accept, of its own VLANs, tagged as its port is, and with no more bytes than frames and
//! headers explain.
#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;
use std::sync::{Arc, LazyLock, Mutex};

use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::egress::{Emitted, Packet, Put};
use weir_engine::filter::{Action, PortRules, Rules};
use weir_engine::gro::EgressList;
use weir_engine::{
    Ask, Delivered, Forward, Forwarder, Ingress, Outgoing, Port, PortCounters, Ports, Side, Slot,
    Taken,
};
use weir_fabric::{Fabric, MacCheck, PortConfig, PortId, Vid, VlanMode, VlanSet};
use weir_filter::Program;
use weir_guestmem::HostBuffer;
use weir_limits::{
    BURST_MAX, FILTER_WINDOW_LEN, FRAME_LEN_MAX, FRAME_LEN_MIN, GSO_SEGMENTS_MAX, HEAD_LEN,
};
use weir_policy::steering::Receiver;
use weir_wire::{Fit, Mac, Offload, OffloadCaps, TagProtocol};

const PORTS: usize = 4;
const TAG_LEN: usize = 4;
const BURSTS_MAX: usize = 8;
/// Size of the memory for the frames of one burst.
const MEMORY: usize = 256 << 10;

static RULES: LazyLock<Vec<Option<Arc<Rules>>>> = LazyLock::new(|| {
    use Action::{Accept, Drop};
    let sets: [&[(&str, Action)]; 7] = [
        &[("vlan", Drop)],
        &[("tcp port 80", Accept), ("tcp", Drop)],
        &[("udp", Drop), ("ip6", Accept)],
        &[("ether[100] = 1", Drop)],
        &[("len > 1000", Drop)],
        &[("ether[1800] = 0", Accept), ("ip", Drop)],
        &[("arp or icmp6", Drop), ("ether multicast", Accept)],
    ];
    let compiled = |text: &str| Arc::new(Program::compile(text).expect("a good filter"));
    let rules = |set: &&[(&str, Action)]| {
        let rules = set.iter().map(|(text, action)| (compiled(text), *action));
        Some(Arc::new(Rules::new(rules).expect("few rules")))
    };
    std::iter::once(None).chain(sets.iter().map(rules)).collect()
});

fn vid(number: u16) -> Vid {
    Vid::new(number).expect("a VLAN")
}

fn trunk(native: Option<u16>, allowed: Option<&[u16]>) -> VlanMode {
    let set = |allowed: &[u16]| VlanSet::Only(allowed.iter().copied().map(vid).collect());
    let allowed = allowed.map_or(VlanSet::All, set);
    VlanMode::Trunk { native: native.map(vid), allowed }
}

fn vlan(number: u8) -> VlanMode {
    match number % 8 {
        0 | 1 => VlanMode::Access(vid(1)),
        2 => VlanMode::Access(vid(2)),
        3 => VlanMode::Access(vid(3)),
        4 => trunk(Some(1), None),
        5 => trunk(None, None),
        6 => trunk(None, Some(&[2, 3])),
        _ => trunk(Some(2), Some(&[1])),
    }
}

/// A receiver that checks its packets.
struct Watcher {
    id: PortId,
    vlan: VlanMode,
    tags: TagProtocol,
    caps: OffloadCaps,
    queues: usize,
    room: Mutex<usize>,
    /// The VLAN and the sender of each frame of the current burst.
    sent: Arc<Mutex<Sent>>,
}

#[derive(Default)]
struct Sent {
    from: Option<PortId>,
    vids: Vec<Option<Vid>>,
}

impl Watcher {
    fn look_at(&self, packet: &Packet<'_, '_>, vids: &[Option<Vid>]) {
        let mut bytes = packet.head.as_slice().to_vec();
        for slice in packet.body() {
            let start = bytes.len();
            bytes.resize(start + slice.len(), 0);
            assert_eq!(slice.read(&mut bytes[start..]), slice.len());
        }
        assert_eq!(bytes.len(), packet.len(), "as long as it says");
        let (least, most) = (FRAME_LEN_MIN as usize, FRAME_LEN_MAX as usize + TAG_LEN);
        assert!((least..=most).contains(&bytes.len()), "{} bytes", bytes.len());
        assert!(packet.frames >= 1 && packet.frames as usize <= BURST_MAX);
        assert_eq!(self.caps.accepts(packet.offload), Fit::AsIs, "{:?}", packet.offload);
        // Offsets count from behind the first tag only.
        let is_tag = |at: usize| matches!(bytes.get(at..at + 2), Some([0x81, 0x00] | [0x88, 0xa8]));
        let mut outer = packet.offload.to_vnet(1);
        let mut front = bytes[..bytes.len().min(FILTER_WINDOW_LEN + TAG_LEN)].to_vec();
        if is_tag(12) && is_tag(16) && outer.flags & 1 != 0 {
            front.drain(12..12 + TAG_LEN);
            outer.csum_start -= TAG_LEN as u16;
        }
        let again = Offload::from_vnet(&outer, &front, bytes.len() as u32);
        assert!(again.is_ok(), "{again:?} of {:?}", packet.offload);

        // A customer's tag is payload at a port of a provider.
        let tagged = match self.tags {
            TagProtocol::Dot1q => matches!(bytes[12..14], [0x81, 0x00] | [0x88, 0xa8]),
            TagProtocol::Dot1ad => bytes[12..14] == [0x88, 0xa8],
        };
        match &self.vlan {
            VlanMode::Access(access) => {
                assert!(!tagged, "a tag behind an access port");
                assert!(vids.contains(&Some(*access)), "another VLAN's frame");
            }
            VlanMode::Trunk { native, allowed } => {
                let vid = if tagged {
                    assert_eq!(bytes[12..14], self.tags.ethertype().to_be_bytes(), "not its own");
                    let vid = u16::from_be_bytes([bytes[14], bytes[15]]) & 0xfff;
                    let vid = Vid::new(vid).expect("a VLAN's tag");
                    assert!(*native != Some(vid) && allowed.contains(vid), "{vid}");
                    vid
                } else {
                    native.expect("a native VLAN")
                };
                assert!(vids.contains(&Some(vid)), "another VLAN's frame");
            }
            VlanMode::Networks => unreachable!("no port of this target is an overlay's"),
        }
    }
}

impl Receiver for Watcher {}

impl Port for Watcher {
    fn take(&self, _: usize, _: Ask, _: &mut Scratch, _: Forward<'_>) -> Taken {
        Taken::default()
    }

    fn deliver(&self, queue: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        assert!(queue < self.queues);
        let sent = self.sent.lock().expect("one thread");
        assert_ne!(sent.from, Some(self.id), "back to its sender");
        assert!(frames.windows(2).all(|pair| pair[0].frame < pair[1].frame), "in order, and once");
        let all = || frames.iter().map(|out| &burst.frames()[usize::from(out.frame)]);
        let bytes_in: usize = all().map(|frame| frame.len as usize + TAG_LEN).sum();
        let most = |frame: &weir_engine::burst::Frame| match frame.offload.gso() {
            Some(_) => GSO_SEGMENTS_MAX as usize,
            None => 1,
        };
        let packets_max: usize = all().map(most).sum();
        let mut room = self.room.lock().expect("one thread");
        let (mut packets, mut bytes_out) = (0, 0);
        let vids: Vec<_> = frames.iter().map(|out| sent.vids[usize::from(out.frame)]).collect();
        let mut list = EgressList::new(burst, frames, self.caps);
        let put = |packet: Packet<'_, '_>| {
            if *room == 0 {
                return Put::Full;
            }
            *room -= 1;
            self.look_at(&packet, &vids);
            packets += 1;
            bytes_out += packet.len();
            Put::Done
        };
        let mut put = put;
        while list.emit_next(&mut put).is_some_and(|sent| sent.result != Ok(Emitted::Full)) {}
        assert!(packets <= packets_max, "{packets} packets of at most {packets_max}");
        assert!(
            bytes_out <= bytes_in + packets * (HEAD_LEN + TAG_LEN),
            "{bytes_out} of {bytes_in} bytes"
        );
        let delivered = list.delivered();
        assert!(delivered.frames <= frames.len());
        Delivered { worth_waiting: true, ..delivered }
    }

    fn expired(&self, _: usize, _: Side, _: u64) -> Option<u64> {
        None
    }

    fn arm_tx(&self, _: usize) -> bool {
        false
    }

    fn kicked(&self, _: usize, _: Side) {}

    fn rx_queues(&self) -> usize {
        self.queues
    }

    fn fail(&self, reason: &str) {
        panic!("the port failed: {reason}");
    }
}

fn caps(bits: u8) -> OffloadCaps {
    let each = [
        OffloadCaps::CSUM,
        OffloadCaps::TSO4,
        OffloadCaps::TSO6,
        OffloadCaps::TSO_ECN,
        OffloadCaps::USO,
    ];
    let chosen = each.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 != 0);
    let caps = chosen.fold(OffloadCaps::NONE, |caps, (_, one)| caps.union(*one));
    // All other offloads require this one.
    if caps == OffloadCaps::NONE { caps } else { caps.union(OffloadCaps::CSUM) }
}

thread_local! {
    static KEPT: RefCell<(Forwarder, Scratch, HostBuffer)> =
        RefCell::new((Forwarder::default(), Scratch::default(), HostBuffer::new(MEMORY)));
}

/// Takes the first `N` bytes of the rest.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*bytes)
}

/// Adds a frame of the input to the burst; `None` at the end of the input.
fn add<'m>(
    rest: &mut &[u8],
    at: &mut usize,
    memory: &'m HostBuffer,
    burst: &mut Burst<'m>,
) -> Option<()> {
    let [shape, len_low, len_high, pad_low, pad_high] = take(rest)?;
    let vnet: [u8; 12] = take(rest)?;
    let vnet = if shape & 0x80 != 0 { vnet } else { [0; 12] };
    let vnet = if shape & 0x40 != 0 { &vnet[..10] } else { &vnet[..] };
    let len = usize::from(u16::from_le_bytes([len_low, len_high]) & 0x1fff).min(rest.len());
    let (content, tail) = rest.split_at(len);
    *rest = tail;
    let pad =
        if shape & 0x20 != 0 { usize::from(u16::from_le_bytes([pad_low, pad_high])) } else { 0 };
    let whole = vnet.len() + len + pad;
    let slice = memory.slice(*at, whole)?;
    *at += whole;
    slice.write(vnet);
    slice.skip(vnet.len()).write(content);
    let mut padding = slice.skip(vnet.len() + len);
    while !padding.is_empty() {
        padding = padding.skip(padding.write(&[0; 4096]));
    }
    let first = burst.pieces.len() as u32;
    let cuts = match shape & 3 {
        0 => [whole, 0, 0],
        1 => [vnet.len().min(whole), whole, 0],
        2 => [7.min(whole), 40.min(whole), whole],
        _ => [130.min(whole), 600.min(whole), whole],
    };
    let mut from = 0;
    for cut in cuts.into_iter().chain([whole]) {
        if cut > from {
            burst.pieces.push(slice.skip(from).first(cut - from));
            from = cut;
        }
    }
    let pieces = Pieces::Among(first, burst.pieces.len() as u32);
    let chain = TakenChain { token: u64::from(first), len: whole as u32, pieces };
    // A refused frame is not in the burst.
    let _ = burst.add(chain, vnet.len(), 1);
    Some(())
}

weir_fuzz::target!(|input: &[u8]| {
    let mut rest = input;
    let fabric = Fabric::new();
    let sent = Arc::new(Mutex::new(Sent::default()));
    let mut ports = Ports::new();
    let mut made = Vec::new();
    for number in 0..PORTS as u8 {
        let Some([way, offloads, rules]) = take(&mut rest) else { return };
        let vlan = vlan(way);
        let mac_check = match way >> 3 & 3 {
            0 | 1 => MacCheck::Off,
            2 => MacCheck::First,
            _ => MacCheck::Pinned(Mac([0x52, 0x54, 0, 0, 0, number])),
        };
        let uplink = way & 0x20 != 0;
        let tags = if rules & 0x40 == 0 { TagProtocol::Dot1q } else { TagProtocol::Dot1ad };
        let config =
            PortConfig { vlan: vlan.clone(), tags, mac_check, uplink, ..PortConfig::vif() };
        let id = fabric.add_port(config.clone()).expect("room for four ports");
        fabric.set_active(id, way & 0x40 == 0).expect("the port is there");
        let counters = Arc::new(PortCounters::default());
        let port = Arc::new(Watcher {
            id,
            vlan,
            tags,
            caps: caps(offloads & 0x1f),
            queues: usize::from(way & 0x80 == 0),
            room: Mutex::new(match offloads >> 5 {
                0 => usize::MAX,
                room => 3 * usize::from(room),
            }),
            sent: Arc::clone(&sent),
        });
        let mut slot = Slot::new(port, Arc::clone(&counters));
        let chosen = |bits: u8| RULES.get(usize::from(bits & 7)).cloned().flatten();
        slot.set_rules(PortRules { tx: chosen(rules), rx: chosen(rules >> 3) });
        ports.resize(id.index() + 1, None);
        ports[id.index()] = Some(slot);
        made.push((id, config, counters));
    }
    KEPT.with_borrow_mut(|(forwarder, scratch, memory)| {
        for now in 0..BURSTS_MAX as u64 {
            let Some([how, count]) = take(&mut rest) else { return };
            let (id, config, counters) = &made[usize::from(how) % PORTS];
            let mut burst = scratch.lend();
            burst.from_device = how & 4 != 0;
            burst.park_room = usize::from(how >> 4);
            let mut at = 0;
            for _ in 0..=usize::from(count) % BURST_MAX {
                if add(&mut rest, &mut at, memory, &mut burst).is_none() {
                    break;
                }
            }
            let room = burst.park_room;
            let vids = burst.frames().iter().map(|frame| config.ingress(frame.tag).ok()).collect();
            *sent.lock().expect("one thread") = Sent { from: Some(*id), vids };
            let view = fabric.view();
            let ingress = Ingress { view: &view, ports: &ports, port: *id, counters, now_ns: now };
            forwarder.forward(ingress, &mut burst);
            assert!(burst.room.parked.len() <= room);
            let mut parked: Vec<_> = burst.room.parked.iter().map(|parked| parked.frame).collect();
            parked.sort_unstable();
            parked.dedup();
            assert_eq!(parked.len(), burst.room.parked.len(), "a frame waits once");
            assert!(parked.iter().all(|frame| usize::from(*frame) < burst.frames().len()));
            assert!(forwarder.holds.is_empty());
        }
    });
});
