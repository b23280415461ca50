//! The thread under many guests at once.

use std::collections::BTreeSet;

use dhcproto::v4::{DhcpOption, Message, MessageType};
use dhcproto::{Decodable, Decoder, Encodable};
use weir_engine::PortCounters;
use weir_fabric::{Capacity, Claim, Fdb, Learner, Vid};
use weir_testing::eventually;

use super::*;
use crate::desk::Bell;
use crate::port::GatewaySettings;

/// As many as one weir serves, beside its own ports.
const GUESTS: u16 = 1_000;
const OWN: &str = "10.7.0.1/16";
const WEIR: Mac = Mac([0x52, 0x54, 0, 0, 0, 0xfe]);
/// The bytes of Ethernet, IPv4 and UDP in front of a message.
const HEADERS: usize = 42;

fn mac(number: u16) -> Mac {
    let [a, b] = number.to_be_bytes();
    Mac([0x52, 0x54, 0, 1, a, b])
}

/// A client\x27s broadcast.
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

/// A network whose guests have sent something each.
fn network(dhcp: DhcpSettings, store: Store) -> (GatewayPort, Service) {
    let fdb = Fdb::new(1, Capacity::default());
    let now_secs = clock::secs(clock::now_ns());
    for number in 0..GUESTS {
        let port = PortId::new(number).unwrap();
        let learner = Learner { port, claim: Claim::Dynamic, learn_max: 9 };
        fdb.learn(Vid::DEFAULT, mac(number), learner, now_secs);
    }
    let settings = GatewaySettings {
        name: "gateway.lan".into(),
        vid: Vid::DEFAULT,
        mac: WEIR,
        ips: vec![dhcp.own.addr().into()],
        has_dhcp: true,
        has_names: false,
        ra: None,
        snooping: None,
        host: None,
    };
    let counters = Arc::new(PortCounters::default());
    let port = GatewayPort::new(settings, Bell::new().unwrap(), Arc::new(fdb), counters);
    for number in 0..GUESTS {
        let vif = format!("vif{number}");
        let guest = Guest { vif, mtu: None, fixed: None, ips: Vec::new() };
        port.set_guest(PortId::new(number).unwrap(), Some(guest));
    }
    let service = Service::start(&port, Some((dhcp, Some(store))), None).unwrap();
    (port, service)
}

/// What all guests hear after each has sent one message.
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

#[test]
fn a_thousand_guests_that_ask_at_once_each_have_an_address_after_two_messages() {
    let own: ipnet::Ipv4Net = OWN.parse().unwrap();
    // There are no more addresses than guests.
    let first = Ipv4Addr::new(10, 7, 1, 0);
    let dhcp = DhcpSettings {
        own,
        range: first..=Ipv4Addr::from_bits(first.to_bits() + u32::from(GUESTS) - 1),
        router: None,
        dns: Vec::new(),
        domain: None,
        lease_secs: 3600,
        fixed: [].into(),
    };
    let (port, service) = network(dhcp, Store::new(tempfile::tempfile().unwrap()));
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
    assert_eq!(service.leases().len(), usize::from(GUESTS));
    let counted: std::collections::HashMap<_, _> = port.answered().all().into_iter().collect();
    let guests = u64::from(GUESTS);
    assert_eq!((counted["dhcp_offered"], counted["dhcp_given"]), (guests, guests));
    assert_eq!((counted["over_rate"], counted["unsent"], counted["dhcp_no_address"]), (0, 0, 0));
}
