//! The thread under many guests at once.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, Message, MessageType};
use dhcproto::{Decodable, Decoder, Encodable};
use weir_engine::PortCounters;
use weir_fabric::{Capacity, Claim, Fdb, Learner, Vid};
use weir_limits::READ_AT_ONCE;
use weir_port_tap::{Tap, TapOptions};
use weir_testing::eventually;
use weir_wire::VnetHdr;

use super::*;
use crate::desk::Bell;
use crate::leases::{Client, Hold, Lease};
use crate::port::GatewaySettings;

/// The most guests that one weir serves, beside its own ports.
const GUESTS: u16 = 1_000;
const OWN: &str = "10.7.0.1/16";
const WEIR: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xfe]);
/// The bytes of Ethernet, IPv4 and UDP in front of a message.
const HEADERS: usize = 42;

fn mac(number: u16) -> Mac {
    let [a, b] = number.to_be_bytes();
    Mac([0x52, 0x54, 0, 1, a, b])
}

/// A client's broadcast.
fn frame(number: u16, kind: MessageType, options: &[DhcpOption]) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(number.into(), none, none, none, none, &mac(number).0);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    options.iter().for_each(|option| _ = message.opts_mut().insert(option.clone()));
    let way = Way {
        macs: (mac(number), Mac::BROADCAST),
        from: (none, DHCP_PORTS.src).into(),
        to: (Ipv4Addr::BROADCAST, DHCP_PORTS.dst).into(),
    };
    way.datagram(&message.to_vec().unwrap()).unwrap()
}

fn gateway(own: Ipv4Addr, fdb: Fdb) -> GatewayPort {
    let settings = GatewaySettings {
        name: "gateway.lan".into(),
        vid: Vid::DEFAULT,
        mac: WEIR,
        ips: vec![own.into()],
        has_dhcp: true,
        has_names: true,
        ra: None,
        snooping: None,
        host: None,
    };
    let counters = Arc::new(PortCounters::default());
    GatewayPort::new(settings, Bell::new().unwrap(), Arc::new(fdb), counters)
}

/// A network whose guests have sent something each.
fn network(dhcp: DhcpSettings, store: Store) -> (GatewayPort, Service) {
    let fdb = Fdb::new(1, Capacity::default());
    let now_secs = clock::secs(clock::now_ns());
    for number in 0..GUESTS {
        let port = PortId::new(number).unwrap();
        let learner = Learner { port, claim: Claim::Dynamic, learn_max: 9 };
        fdb.learn(Vid::DEFAULT, mac(number), learner, now_secs);
    }
    let port = gateway(dhcp.own.addr(), fdb);
    for number in 0..GUESTS {
        let vif = format!("vif{number}");
        let guest = Guest { vif, mtu: None, fixed: None, ips: Vec::new() };
        port.set_guest(PortId::new(number).unwrap(), Some(guest));
    }
    let service =
        Service::start(&port, LeaseSettings { dhcp: Some((dhcp, Some(store))), dhcp6: None }, None)
            .unwrap();
    (port, service)
}

/// A guest's request of ARP for `target`, from its address `from`.
fn request(number: u16, from: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let arp = [0, 1, 8, 0, 6, 4, 0, 1];
    let head = [&Mac::BROADCAST.0[..], &mac(number).0, &[8, 6], &arp].concat();
    [&head[..], &mac(number).0, &from.octets(), &[0; 6], &target.octets()].concat()
}

#[test]
fn a_request_for_a_neighbour_is_remembered_with_who_else_uses_the_address() {
    let (ip, own) = (|last| Ipv4Addr::new(10, 7, 0, last), Ipv4Addr::new(10, 7, 0, 1));
    let fdb = Fdb::new(1, Capacity::default());
    let now = clock::secs(clock::now_ns());
    let id = |number| PortId::new(number).unwrap();
    for number in 0..3 {
        let learner = Learner { port: id(number), claim: Claim::Dynamic, learn_max: 9 };
        fdb.learn(Vid::DEFAULT, mac(number), learner, now);
    }
    let port = gateway(own, fdb);
    // The last one is behind an uplink.
    for number in 0..2 {
        let guest = Guest { vif: format!("vif{number}"), mtu: None, fixed: None, ips: Vec::new() };
        port.set_guest(id(number), Some(guest));
    }
    let desk = port.desk();
    let seconds = |number, now| desk.asked(id(number), now).map(|(asked, _)| asked.seconds);
    for now in [now, now, now + 1, now + 2] {
        desk.hear(&request(0, ip(5), ip(9)), now);
    }
    assert_eq!(seconds(0, now + 2), Some(3), "requests of one second count once");
    desk.hear(&request(0, ip(5), ip(9)), now + 30);
    assert_eq!(seconds(0, now + 30), Some(1), "who pauses has had an answer");
    assert_eq!(seconds(0, now + 61), None, "a request of long ago says nothing");
    desk.hear(&request(2, ip(5), ip(9)), now + 30);
    assert_eq!(desk.asked(id(2), now + 30), None);
    desk.hear(&request(1, ip(5), own), now + 31);
    let (asked, other) = desk.asked(id(1), now + 31).unwrap();
    assert_eq!((asked.target, other.as_deref()), (own.into(), Some("vif0")));
    // An announcement asks for nothing, and a probe uses no address.
    desk.hear(&request(1, ip(5), ip(5)), now + 32);
    assert_eq!(desk.asked(id(1), now + 32).unwrap().0.at_secs, now + 31);
    desk.hear(&request(1, Ipv4Addr::UNSPECIFIED, ip(5)), now + 32);
    assert_eq!(desk.asked(id(1), now + 32).unwrap().1, None);
    port.set_guest(id(0), None);
    assert_eq!(desk.asked(id(0), now + 30), None);
}

/// The answers to all guests after each has sent one message.
fn all_say(port: &GatewayPort, say: impl Fn(u16) -> Vec<u8>) -> Vec<(Mac, Message)> {
    for number in 0..GUESTS {
        let frame = say(number);
        let wanted = port.station().wants(&frame).expect("a message for weir");
        port.desk().arrive(PortId::new(number).unwrap(), wanted, || Some(frame));
    }
    let mut heard = Vec::new();
    eventually("each guest has an answer", || {
        while let Some(frame) = port.desk().next_answer() {
            let to = weir_wire::Ethernet::parse(&frame).unwrap().dst;
            heard.push((to, Message::decode(&mut Decoder::new(&frame[HEADERS..])).unwrap()));
        }
        (heard.len() >= usize::from(GUESTS)).then_some(())
    });
    heard
}

/// A network with no more addresses than guests.
fn settings() -> DhcpSettings {
    let first = Ipv4Addr::new(10, 7, 1, 0);
    DhcpSettings {
        own: OWN.parse().unwrap(),
        range: first..=Ipv4Addr::from_bits(first.to_bits() + u32::from(GUESTS) - 1),
        router: None,
        routes: Vec::new(),
        dns: Vec::new(),
        domain: None,
        lease_secs: 3600,
        fixed: [].into(),
        boot: crate::BootSettings::default(),
    }
}

#[test]
fn leases_that_cannot_be_saved_are_given_and_counted() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (port, service) = network(settings(), Store::new(std::fs::File::open(&file).unwrap()));
    let offers = all_say(&port, |number| frame(number, MessageType::Discover, &[]));
    let offers: std::collections::BTreeMap<_, _> =
        offers.into_iter().map(|(to, offer)| (to, offer.yiaddr())).collect();
    all_say(&port, |number| {
        let address = DhcpOption::RequestedIpAddress(offers[&mac(number)]);
        let server = DhcpOption::ServerIdentifier(settings().own.addr());
        frame(number, MessageType::Request, &[address, server])
    });
    assert_eq!(service.bound().len(), usize::from(GUESTS));
    let counted: std::collections::HashMap<_, _> = port.answered().all().into_iter().collect();
    assert!(counted["leases_unsaved"] > 0);
}

#[test]
fn a_thousand_guests_that_ask_at_once_each_have_an_address_after_two_messages() {
    let own = settings().own;
    let (port, service) = network(settings(), Store::new(tempfile::tempfile().unwrap()));
    let offers = all_say(&port, |number| frame(number, MessageType::Discover, &[]));
    let offered = |number: u16| {
        let mut of = offers.iter().filter(|(to, _)| *to == mac(number));
        let address = of.next().expect("an offer").1.yiaddr();
        assert!(of.next().is_none(), "one offer for each");
        address
    };
    let all: BTreeSet<_> = (0..GUESTS).map(offered).collect();
    assert_eq!(all.len(), usize::from(GUESTS), "no address is offered to two");
    let given = all_say(&port, |number| {
        let options = [
            DhcpOption::RequestedIpAddress(offered(number)),
            DhcpOption::ServerIdentifier(own.addr()),
        ];
        frame(number, MessageType::Request, &options)
    });
    for (to, message) in &given {
        assert_eq!(message.opts().msg_type(), Some(MessageType::Ack));
        assert!(offers.iter().any(|(it, offer)| it == to && offer.yiaddr() == message.yiaddr()));
    }
    assert_eq!(service.bound().len(), usize::from(GUESTS));
    let counted: std::collections::HashMap<_, _> = port.answered().all().into_iter().collect();
    let guests = u64::from(GUESTS);
    assert_eq!((counted["dhcp_offered"], counted["dhcp_given"]), (guests, guests));
    assert_eq!((counted["over_rate"], counted["unsent"], counted["dhcp_no_address"]), (0, 0, 0));
    assert_eq!(counted["leases_unsaved"], 0);
}

/// The name of the test below, and the variable that it sets for itself in its own network.
const BY_KERNEL: &str =
    "service::tests::root_the_kernels_tcp_gets_long_answers_and_others_whatever_is_lost";
const WITHIN: &str = "WEIR_TEST_WITHIN_NETWORK";

/// The question for the IPv6 addresses of `name`.
fn question(number: u16, name: &str) -> Vec<u8> {
    use hickory_proto::op::{MessageType, OpCode, Query};
    let mut message = hickory_proto::op::Message::new(number, MessageType::Query, OpCode::Query);
    let name = hickory_proto::rr::Name::from_ascii(name).unwrap();
    message.queries.push(Query::query(name, hickory_proto::rr::RecordType::AAAA));
    message.to_vec().unwrap()
}

#[test]
fn root_the_kernels_tcp_gets_long_answers_and_others_whatever_is_lost() {
    if !weir_testing::is_root("a TAP and a network namespace") {
        return;
    }
    if std::env::var_os(WITHIN).is_none() {
        let mut again = std::process::Command::new("unshare");
        again.arg("--net").arg(std::env::current_exe().unwrap()).args(["--exact", BY_KERNEL]);
        let output = again.env(WITHIN, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let options = TapOptions { name: "guest0".into(), queues: 1, mtu: None, mac: Some(mac(0)) };
    let tap = Tap::open(&options).unwrap();
    for arguments in [
        "address add 192.168.77.9/24 dev guest0",
        &format!("neighbour add 192.168.77.1 lladdr {WEIR} dev guest0"),
    ] {
        let mut ip = std::process::Command::new("ip");
        assert!(ip.args(arguments.split(' ')).status().unwrap().success(), "{arguments}");
    }
    let fdb = Fdb::new(1, Capacity::default());
    let guest = PortId::new(0).unwrap();
    let learner = Learner { port: guest, claim: Claim::Dynamic, learn_max: 9 };
    fdb.learn(Vid::DEFAULT, mac(0), learner, clock::secs(clock::now_ns()));
    let own = Ipv4Addr::new(192, 168, 77, 1);
    let port = gateway(own, fdb);
    let ips: Vec<IpAddr> =
        (1..=100).map(|n| IpAddr::from([0xfd00, 0x77, 0, 0, 0, 0, 0, n])).collect();
    let served = Guest { vif: "web0".into(), mtu: None, fixed: None, ips };
    port.set_guest(guest, Some(served));
    let (domain, subnets) = ("internal".into(), vec![]);
    let names = NamesSettings { domain, subnets, dial: None, host: None };
    let _service = Service::start(&port, LeaseSettings::default(), Some(names)).unwrap();

    // Frames pass from the kernel to weir and back. One of five is lost in either direction, at no
    // regular period: otherwise the same frame of an exchange could be lost at each repetition.
    let loses = std::sync::atomic::AtomicBool::new(false);
    let ends = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (queue, mut drawn) = (&tap.queues()[0], 1_u64);
            let mut is_lost = || {
                drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                loses.load(order) && (drawn >> 33) % 5 == 0
            };
            while !ends.load(order) {
                let mut bytes = vec![0; VnetHdr::LEN + 2_000];
                if let Ok(len) = rustix::io::read(queue, &mut bytes) {
                    let frame = bytes[VnetHdr::LEN..len].to_vec();
                    if let Some(wanted) = port.station().wants(&frame).filter(|_| !is_lost()) {
                        port.desk().arrive(guest, wanted, || Some(frame));
                    }
                }
                while let Some(frame) = port.desk().next_answer() {
                    if !is_lost() {
                        let bytes = [&[0; VnetHdr::LEN][..], &frame].concat();
                        rustix::io::write(queue, &bytes).unwrap();
                    }
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let asked = || {
            let records = |answer: &[u8]| {
                let answer = hickory_proto::op::Message::from_vec(answer).unwrap();
                (answer.metadata.id, answer.answers.len(), answer.metadata.truncation)
            };
            if !loses.load(order) {
                let socket = std::net::UdpSocket::bind("192.168.77.9:0").unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                socket.send_to(&question(1, "web0.internal."), (own, 53)).unwrap();
                let mut bytes = [0; 2_000];
                let len = socket.recv(&mut bytes).unwrap();
                assert_eq!(records(&bytes[..len]), (1, 0, true), "a datagram is too short");
            }
            let mut stream = std::net::TcpStream::connect((own, 53)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut all = Vec::new();
            for number in 2..6 {
                let name = if number % 2 == 0 { "web0.internal." } else { "db0.internal." };
                let question = question(number, name);
                all.extend((question.len() as u16).to_be_bytes());
                all.extend(question);
            }
            stream.write_all(&all).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            let mut rest = said.as_slice();
            for number in 2..6 {
                let (length, after) = rest.split_at(2);
                let (answer, after) =
                    after.split_at(u16::from_be_bytes(length.try_into().unwrap()).into());
                let count = if number % 2 == 0 { 100 } else { 0 };
                assert_eq!(records(answer), (number, count, false));
                rest = after;
            }
            assert!(rest.is_empty());
        };
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            asked();
            loses.store(true, order);
            (0..3).for_each(|_| asked());
            loses.store(false, order);
            // Nobody listens elsewhere, and an idle connection ends.
            let mut idle = std::net::TcpStream::connect((own, 53)).unwrap();
            idle.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            assert!(idle.read(&mut [0; 1]).is_err(), "it is reset");
        }));
        ends.store(true, order);
        all.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn all_bound_addresses_are_listed_a_page_at_a_time() {
    let mut leases = Leases::default();
    let many = 5 * READ_AT_ONCE as u32 / 2;
    let address = |number: u32| Ipv4Addr::from_bits(0x0a00_0000 + number);
    for number in 0..many {
        let client = Client { vif: format!("vif{number}"), mac: Mac([2; 6]), id: None };
        // A page whose leases have all ended is not the last one.
        let until_secs = if (5..2 * READ_AT_ONCE as u32).contains(&number) { 50 } else { 200 };
        let hold = if number == 2 { Hold::Offered } else { Hold::Bound };
        leases.put(address(number), Lease { client, hold, until_secs }, 10);
    }
    assert_eq!(leases.after(None).count(), READ_AT_ONCE);
    assert_eq!(leases.after(Some(address(9))).next().unwrap().0, address(10));
    assert_eq!(leases.after(Some(address(many - 1))).count(), 0);
    let listed = |leases: Leases| bound(&Mutex::new(leases), 100).into_iter().map(|it| it.0);
    let expected = [0, 1, 3, 4].into_iter().chain(2 * READ_AT_ONCE as u32..many).map(address);
    assert!(listed(leases).eq(expected));
    assert_eq!(listed(Leases::default()).count(), 0);
}
