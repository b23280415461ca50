//! Guests' frames to a network in which weir has addresses, gives addresses, advertises prefixes, answers for names and
//! snoops multicast: through the forwarding rules to weir's port, to the answers, and back.
//!
//! The input is a sequence of frames of three guests. Each is made whole before it is sent (lengths, checksums), or is
//! sent as it is. Whatever guests send, an answer is bounded and goes to the guest that asked and to nobody else, no
//! table grows beyond its bound, and a guest that keeps the rules is served at the end.
#![cfg_attr(fuzzing, no_main)]

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use weir_engine::burst::{Burst, Pieces, Scratch, TakenChain};
use weir_engine::{
    Ask, Delivered, Forward, Forwarder, Ingress, Outgoing, Port, PortCounters, Ports, Side, Slot,
    Take, Taken, clock,
};
use weir_fabric::{Fabric, MacCheck, PortConfig, PortId, Snooping, Vid, VlanMode};
use weir_guestmem::HostBuffer;
use weir_limits::{
    LEASES_MAX, LEASES_PER_VIF_MAX, MULTICAST_GROUPS_PER_VIF_MAX, MULTICAST_SHOWN,
    OWN_FRAME_LEN_MAX,
};
use weir_policy::steering::Receiver;
use weir_port_gateway::testing::Gateway;
use weir_port_gateway::{
    Bell, BootSettings, Dhcp6Settings, DhcpSettings, GatewayPort, GatewaySettings, Guest,
    LeaseSettings, NamesSettings, RaSettings,
};
use weir_wire::{Mac, Sum};

/// Guests that the input speaks for: of a configured address, of its first one, and of any. The next one keeps the
/// rules, and the last port is an uplink.
const GUESTS: usize = 3;
const HONEST: usize = GUESTS;
const UPLINK: usize = GUESTS + 1;
const FRAMES_MAX: usize = 64;
const MEMORY: usize = 64 << 10;
const VNET_LEN: usize = 12;

const OWN: Mac = Mac([2, 0x77, 0, 0, 0, 1]);
const OWN_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
const VLAN: u16 = 20;

fn mac(number: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, number as u8 + 1])
}

fn ip(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, number as u8 + 2)
}

/// A port that keeps what it is sent.
#[derive(Default)]
struct Ear {
    heard: Mutex<Vec<Vec<u8>>>,
}

impl Ear {
    fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.heard.lock().expect("one thread"))
    }
}

impl Receiver for Ear {}

impl Port for Ear {
    fn take(&self, _: usize, _: Ask, _: &mut Scratch, _: Forward<'_>) -> Taken {
        Taken::default()
    }

    fn deliver(&self, _: usize, burst: &Burst<'_>, frames: &[Outgoing]) -> Delivered {
        for outgoing in frames {
            let frame = &burst.frames()[usize::from(outgoing.frame)];
            let mut bytes = frame.head.as_slice().to_vec();
            for piece in burst.payload(frame) {
                let start = bytes.len();
                bytes.resize(start + piece.len(), 0);
                assert_eq!(piece.read(&mut bytes[start..]), piece.len());
            }
            self.heard.lock().expect("one thread").push(bytes);
        }
        Delivered { frames: frames.len(), ..Delivered::default() }
    }

    fn expired(&self, _: usize, _: Side, _: u64) -> Option<u64> {
        None
    }

    fn arm_tx(&self, _: usize) -> bool {
        false
    }

    fn kicked(&self, _: usize, _: Side) {}

    fn rx_queues(&self) -> usize {
        1
    }

    fn fail(&self, reason: &str) {
        panic!("the port failed: {reason}");
    }
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

fn summed(mut sum: Sum, message: &mut [u8], at: usize) {
    if let Some(field) = message.get_mut(at..at + 2) {
        field.fill(0);
        sum.add(message);
        let sum = sum.finish().to_be_bytes();
        message[at..at + 2].copy_from_slice(&sum);
    }
}

fn ethernet(to: Mac, from: Mac, ethertype: u16, packet: &[u8]) -> Vec<u8> {
    [&to.0[..], &from.0, &ethertype.to_be_bytes(), packet].concat()
}

fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend(((20 + payload.len()) as u16).to_be_bytes());
    header.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    summed(Sum::new(), &mut header, 10);
    [&header, payload].concat()
}

/// A packet of IPv6 with a checksum at an offset of its payload.
fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, payload: &[u8], sum_at: usize) -> Vec<u8> {
    let mut payload = payload.to_vec();
    let mut sum = Sum::new();
    sum.add(&from.octets());
    sum.add(&to.octets());
    sum.add_u32(payload.len() as u32 + u32::from(next));
    summed(sum, &mut payload, sum_at);
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 255]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend(payload);
    packet
}

fn udp(ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let words = [ports[0], ports[1], (8 + payload.len()) as u16, 0];
    [words.map(u16::to_be_bytes).as_flattened(), payload].concat()
}

fn dhcp(client: Mac, options: &[u8]) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0, 0, 0, 0, 7, 0, 0, 0x80, 0];
    message.extend([0; 16]);
    message.extend(client.0);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99]);
    message.extend(options);
    message
}

/// A frame of guest `number`, whose content comes from the input.
fn frame(kind: u8, number: usize, content: &[u8]) -> Vec<u8> {
    let (from, own, local) =
        (mac(number), ip(number), Ipv6Addr::from([0xfe80, 0, 0, 0, 0, 0, 0, number as u16 + 2]));
    let all = Ipv4Addr::BROADCAST;
    let unspecified = Ipv4Addr::UNSPECIFIED;
    let group = |bytes: &[u8]| Ipv4Addr::new(239, 1, bytes.first().copied().unwrap_or(0), 3);
    let v4 = |to: Mac, packet: &[u8]| ethernet(to, from, 0x0800, packet);
    let v6 = |to: Mac, packet: &[u8]| ethernet(to, from, 0x86dd, packet);
    let near = Mac([0x33, 0x33, 0, 0, 0, 1]);
    match kind % 16 {
        0 => content.to_vec(),
        1 => ethernet(OWN, from, 0x0800, content),
        2 => ethernet(Mac::BROADCAST, from, 0x86dd, content),
        3 => {
            let message = dhcp(from, content);
            v4(Mac::BROADCAST, &ipv4(unspecified, all, 17, &udp([68, 67], &message)))
        }
        4 => {
            let mut message = dhcp(from, &[]);
            let len = message.len().min(content.len());
            message[..len].copy_from_slice(&content[..len]);
            message.extend(&content[len..]);
            v4(OWN, &ipv4(own, OWN_V4, 17, &udp([68, 67], &message)))
        }
        5 => {
            let message = [&[0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], content].concat();
            v4(OWN, &ipv4(own, OWN_V4, 17, &udp([4000, 53], &message)))
        }
        6 => v6(OWN, &ipv6(local, OWN_V6, 17, &udp([4000, 53], content), 6)),
        7 => {
            let fixed = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &from.0, &own.octets(), &[0; 6]].concat();
            let target = if content.len() < 4 { &OWN_V4.octets() } else { content };
            ethernet(Mac::BROADCAST, from, 0x0806, &[&fixed[..], target].concat())
        }
        8 => {
            let head = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &OWN_V6.octets()].concat();
            v6(near, &ipv6(local, OWN_V6, 58, &[&head[..], content].concat(), 2))
        }
        9 => {
            let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
            v6(near, &ipv6(local, routers, 58, &[&[133, 0, 0, 0, 0, 0, 0, 0], content].concat(), 2))
        }
        10 => {
            let mut echo = [&[8, 0, 0, 0, 0, 1, 0, 1], content].concat();
            summed(Sum::new(), &mut echo, 2);
            v4(OWN, &ipv4(own, OWN_V4, 1, &echo))
        }
        11 => v6(OWN, &ipv6(local, OWN_V6, 58, content, 2)),
        12 => {
            let mut message = content.to_vec();
            summed(Sum::new(), &mut message, 2);
            let to = group(content);
            v4(Mac([1, 0, 0x5e, 1, to.octets()[2], 3]), &ipv4(own, to, 2, &message))
        }
        13 => {
            let mut packet = ipv6(local, "ff02::16".parse().expect("a constant"), 58, content, 2);
            // A hop-by-hop header with a router alert is before the message, as MLD has it.
            let payload = packet.split_off(40);
            packet[6] = 0;
            packet[7] = 1;
            packet[4..6].copy_from_slice(&((payload.len() + 8) as u16).to_be_bytes());
            packet.extend([58, 0, 5, 2, 0, 0, 1, 0]);
            packet.extend(payload);
            v6(Mac([0x33, 0x33, 0, 0, 0, 0x16]), &packet)
        }
        14 => {
            // A client of DHCPv6 (RFC 8415).
            let servers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
            v6(near, &ipv6(local, servers, 17, &udp([546, 547], content), 6))
        }
        // The guest speaks in the name of another station.
        _ => {
            let whole = frame(content.first().copied().unwrap_or(0) % 15, number, content);
            let other = mac(content.len() % (UPLINK + 1));
            match whole.len() {
                0..12 => whole,
                _ => [&whole[..6], &other.0, &whole[12..]].concat(),
            }
        }
    }
}

/// A switch with weir's port, guests and an uplink.
struct Bench {
    fabric: Fabric,
    ports: Ports,
    ids: Vec<PortId>,
    own: PortId,
    ears: Vec<Arc<Ear>>,
    counters: Vec<Arc<PortCounters>>,
    own_counters: Arc<PortCounters>,
    gateway: Gateway,
}

impl Bench {
    fn new() -> Self {
        let vid = Vid::new(VLAN).expect("a VLAN");
        let fabric = Fabric::new();
        fabric.snoop(Snooping::new([vid].into_iter()).expect("one VLAN"));
        let vlan = || VlanMode::Access(vid);
        let config =
            PortConfig { vlan: vlan(), mac_check: MacCheck::Pinned(OWN), ..PortConfig::vif() };
        let own = fabric.add_port(config).expect("room for a port");
        let own_counters = Arc::new(PortCounters::default());
        let snooping = fabric.snooping().cloned().map(|snooping| (snooping, own));
        let settings = GatewaySettings {
            name: "gateway.green".into(),
            vid,
            mac: OWN,
            ips: vec![OWN_V4.into(), OWN_V6.into()],
            has_dhcp: true,
            has_names: true,
            ra: Some(RaSettings {
                prefixes: vec!["fd00:77::/64".parse().expect("a prefix")],
                dns: vec![OWN_V6],
                domain: Some("lab.internal".into()),
                managed: true,
                router_secs: 0,
            }),
            snooping,
            host: None,
        };
        let bell = Bell::new().expect("a descriptor");
        let (fdb, counters) = (Arc::clone(fabric.fdb()), Arc::clone(&own_counters));
        let port = Arc::new(GatewayPort::new(settings, bell, fdb, counters));
        let dhcp = DhcpSettings {
            own: "10.77.0.1/24".parse().expect("an address"),
            range: Ipv4Addr::new(10, 77, 0, 100)..=Ipv4Addr::new(10, 77, 0, 119),
            router: Some(Ipv4Addr::new(10, 77, 0, 254)),
            routes: vec![
                ("10.0.0.0/8".parse().expect("a prefix"), Ipv4Addr::new(10, 77, 0, 101)),
                ("172.16.0.0/12".parse().expect("a prefix"), OWN_V4),
            ],
            dns: vec![OWN_V4],
            domain: Some("internal".into()),
            lease_secs: 600,
            fixed: [("guest0".to_owned(), ip(0))].into(),
            boot: BootSettings {
                server: Some(Ipv4Addr::new(10, 77, 0, 254)),
                ipxe: Some("menu.ipxe".into()),
                by_architecture: [(7, "ipxe.efi".into())].into(),
                others: Some("f".repeat(127)),
            },
        };
        let names = NamesSettings {
            domain: "internal".into(),
            subnets: vec![
                "10.77.0.0/24".parse().expect("a subnet"),
                "fd00:77::/64".parse().expect("a subnet"),
            ],
            dial: None,
            host: None,
        };
        let subnet = "fd00:77::1/64".parse().expect("a subnet");
        let fixed = [("guest0".to_owned(), "fd00:77::10".parse().expect("an address"))].into();
        let dhcp6 = Some((Dhcp6Settings { own: subnet, lease_secs: 600, fixed }, None));
        let leases = LeaseSettings { dhcp: Some((dhcp, None)), dhcp6 };
        let gateway = Gateway::new(Arc::clone(&port), leases, Some(names)).expect("a gateway");
        let mut ports = Ports::new();
        let mut put = |id: PortId, slot: Slot| {
            ports.resize(ports.len().max(id.index() + 1), None);
            ports[id.index()] = Some(slot);
        };
        put(own, Slot::new(Arc::clone(&port) as Arc<dyn Port>, Arc::clone(&own_counters)));
        fabric.set_active(own, true).expect("the port is there");
        let (mut ids, mut ears, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..=UPLINK {
            let mac_check = match number {
                0 | HONEST => MacCheck::Pinned(mac(number)),
                1 => MacCheck::First,
                _ => MacCheck::Off,
            };
            let kind = if number == UPLINK { PortConfig::uplink() } else { PortConfig::vif() };
            let id = fabric.add_port(PortConfig { vlan: vlan(), mac_check, ..kind });
            let id = id.expect("room for a port");
            fabric.set_active(id, true).expect("the port is there");
            let (ear, counters) = (Arc::new(Ear::default()), Arc::new(PortCounters::default()));
            put(id, Slot::new(Arc::clone(&ear) as Arc<dyn Port>, Arc::clone(&counters)));
            if number != UPLINK {
                let fixed = (number == 0).then(|| ip(0));
                let guest = Guest {
                    vif: format!("guest{number}"),
                    mtu: Some(1400),
                    fixed,
                    ips: fixed.into_iter().map(IpAddr::from).collect(),
                };
                port.set_guest(id, Some(guest));
            }
            ids.push(id);
            ears.push(ear);
            all.push(counters);
        }
        Self { fabric, ports, ids, own, ears, counters: all, own_counters, gateway }
    }

    /// Sends a frame of a port, has weir answer, and returns the answers that each port gets.
    fn send(&mut self, number: usize, bytes: &[u8], now_secs: u32) -> Vec<Vec<Vec<u8>>> {
        KEPT.with_borrow_mut(|(forwarder, scratch, memory)| {
            let view = self.fabric.view();
            let whole = VNET_LEN + bytes.len();
            let slice = memory.slice(0, whole).expect("room for a frame");
            slice.write(&[0; VNET_LEN]);
            slice.skip(VNET_LEN).write(bytes);
            let mut burst = scratch.lend();
            let first = burst.pieces.len() as u32;
            burst.pieces.push(slice);
            let pieces = Pieces::Among(first, burst.pieces.len() as u32);
            let chain = TakenChain { token: 0, len: whole as u32, pieces };
            // A refused frame is not in the burst.
            let _ = burst.add(chain, VNET_LEN, 1);
            let (ports, now_ns) = (&self.ports, clock::now_ns());
            let (port, counters) = (self.ids[number], &*self.counters[number]);
            forwarder.forward(Ingress { view: &view, ports, port, counters, now_ns }, &mut burst);
            self.ears.iter().for_each(|ear| drop(ear.take()));

            let made = self.gateway.turn(now_secs);
            assert!(made <= 1, "{made} answers to one frame");
            let taken = self.pass_on(forwarder);
            assert!(taken <= made, "{taken} frames of {made} answers");
        });
        self.ears.iter().map(|ear| ear.take()).collect()
    }

    /// Sends the answers that wait, and returns their number.
    fn pass_on(&self, forwarder: &mut Forwarder) -> usize {
        let view = self.fabric.view();
        let (ports, port, counters) = (&self.ports, self.own, &*self.own_counters);
        let (mut scratch, mut taken) = (Scratch::default(), 0);
        loop {
            let before = taken;
            let mut forward = |burst: &mut Burst<'_>| {
                taken += burst.frames().len();
                let now_ns = clock::now_ns();
                forwarder.forward(Ingress { view: &view, ports, port, counters, now_ns }, burst);
            };
            let ask = Take::New.at(clock::now_ns());
            self.gateway.port().take(0, ask, &mut scratch, &mut forward);
            if taken == before {
                return taken;
            }
        }
    }

    fn check(&self, now_secs: u32) {
        let leases: Vec<_> = self.gateway.leases().collect();
        assert!(leases.len() <= LEASES_MAX);
        for number in 0..=HONEST {
            let vif = format!("guest{number}");
            let held =
                leases.iter().filter(|(_, lease)| lease.client.vif == vif && lease.holds(now_secs));
            assert!(held.count() <= LEASES_PER_VIF_MAX, "{vif}");
        }
        let range = Ipv4Addr::new(10, 77, 0, 100)..=Ipv4Addr::new(10, 77, 0, 119);
        for (address, lease) in &leases {
            let fixed = *address == ip(0) && lease.client.vif == "guest0";
            assert!(range.contains(address) || fixed, "{address} for {}", lease.client.vif);
        }
        let vid = Vid::new(VLAN).expect("a VLAN");
        let at = clock::secs(clock::now_ns());
        let found = self.fabric.fdb().lookup(vid, OWN, at);
        assert!(found.is_none_or(|port| port == self.own), "a guest has weir's address");
        let honest = self.fabric.fdb().lookup(vid, mac(HONEST), at);
        assert!(
            honest.is_none_or(|port| port == self.ids[HONEST]),
            "a guest has another one's address"
        );
        let snooping = self.fabric.snooping().expect("it was begun");
        for standing in snooping.standings(at, MULTICAST_SHOWN) {
            assert_eq!(standing.unshown, 0);
            assert!(
                standing
                    .members
                    .iter()
                    .all(|it| it.group.is_multicast() && it.group.is_ipv6() == standing.v6)
            );
            for id in &self.ids {
                let of = standing.members.iter().filter(|it| it.port == *id).count();
                assert!(of <= MULTICAST_GROUPS_PER_VIF_MAX as usize);
            }
        }
    }
}

weir_fuzz::target!(|input: &[u8]| {
    let mut rest = input;
    let mut bench = Bench::new();
    let mut now_secs = clock::secs(clock::now_ns());
    // The frames that weir sends by itself go first: none of them is due again while an input runs.
    bench.gateway.turn(now_secs);
    KEPT.with_borrow_mut(|(forwarder, ..)| {
        // The forwarder remembers routes of the previous switch.
        *forwarder = Forwarder::default();
        bench.pass_on(forwarder)
    });
    for _ in 0..FRAMES_MAX {
        let Some([kind, who, len]) = take(&mut rest) else { break };
        let len = (usize::from(len) * if who & 0x80 != 0 { 8 } else { 1 }).min(rest.len());
        let (content, tail) = rest.split_at(len);
        rest = tail;
        let number = usize::from(who) % GUESTS;
        now_secs += u32::from(kind >> 4) * 40;
        let sent = frame(kind, number, content);
        let heard = bench.send(number, &sent, now_secs);
        for (port, frames) in heard.iter().enumerate() {
            assert!(port == number || frames.is_empty(), "port {port} hears an answer to {number}");
            for answer in frames {
                assert!(answer.len() <= OWN_FRAME_LEN_MAX, "{} bytes", answer.len());
                assert_eq!(answer[6..12], OWN.0, "weir speaks in its own name");
            }
        }
        bench.check(now_secs);
    }

    let asks = |target: Ipv4Addr| frame(7, HONEST, &target.octets());
    let heard = bench.send(HONEST, &asks(OWN_V4), now_secs);
    assert!(heard[HONEST].iter().any(|it| it[12..14] == [8, 6]), "weir is not found");
    let heard = bench.send(HONEST, &frame(3, HONEST, &[53, 1, 1, 255]), now_secs);
    let is_offer = |it: &Vec<u8>| {
        let options = it.get(282..).unwrap_or_default();
        options.windows(3).any(|option| option == [53, 1, 2])
    };
    assert!(heard[HONEST].iter().any(is_offer), "no address is offered: {heard:?}");
    let name = [&[6][..], b"guest0", &[8], b"internal", &[0, 0, 1, 0, 1]].concat();
    let heard = bench.send(HONEST, &frame(5, HONEST, &name), now_secs);
    let answers = |it: &Vec<u8>| it.windows(4).any(|four| four == ip(0).octets());
    assert!(heard[HONEST].iter().any(answers), "a name is not answered: {heard:?}");
});
