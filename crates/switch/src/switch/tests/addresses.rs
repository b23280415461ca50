//! Guests to which weir itself leases addresses.

use std::net::Ipv4Addr;

use dhcproto::v4::{DhcpOption, Message, MessageType, OptionCode};
use dhcproto::{Decodable, Decoder, Encodable};

use super::*;
use crate::control::{AddressEntry, Part};

const NETWORK: &str = "[network.lan]\naddress = \"192.168.77.2/24\"\ndhcp = true\nrouter = \"192.168.77.1\"\n\
                       range = \"192.168.77.100-192.168.77.199\"\nfixed = \"b 192.168.77.10\"\n";
const WEIR: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 2);
const FIXED: Ipv4Addr = Ipv4Addr::new(192, 168, 77, 10);

fn with_vifs(vifs: &str) -> String {
    format!("{NETWORK}{vifs}")
}

/// A guest that asks for addresses.
struct Client {
    _guest: Guest,
    pair: QueuePair,
    number: u8,
}

impl Client {
    fn of(bench: &Bench, vif: &str, number: u8) -> Self {
        let (guest, mut pairs) = bench.guest(vif, number, 1);
        Self { _guest: guest, pair: pairs.remove(0), number }
    }

    fn send(&mut self, frame: &[u8]) {
        eventually("room to send", || self.pair.send(frame, &Offload::NONE).is_ok());
        self.pair.flush();
    }

    /// Sends a client's message as a broadcast datagram.
    fn says(&mut self, kind: MessageType, chaddr: u8, options: &[DhcpOption]) {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message =
            Message::new_with_id(u32::from(self.number), none, none, none, none, &mac(chaddr));
        message.opts_mut().insert(DhcpOption::MessageType(kind));
        for option in options {
            message.opts_mut().insert(option.clone());
        }
        let frame =
            udp(self.number, (none, 68), (Ipv4Addr::BROADCAST, 67), &message.to_vec().unwrap());
        self.send(&frame);
    }

    /// The next message of a server within `patience`.
    fn hears(&mut self, patience: Duration) -> Option<Message> {
        let end = Instant::now() + patience;
        let mut frame = Vec::new();
        while Instant::now() < end {
            if self.pair.recv_into(&mut frame).is_none() {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            // UDP, from 67 to 68.
            if frame.get(23) == Some(&17) && frame.get(34..38) == Some(&[0, 67, 0, 68]) {
                assert_eq!(frame[..6], mac(self.number), "it is for this guest alone");
                assert_eq!(frame[26..30], WEIR.octets());
                assert_eq!([sum(&frame[14..34]), sum_of_udp(&frame)], [0; 2]);
                return Some(Message::decode(&mut Decoder::new(&frame[42..])).unwrap());
            }
        }
        None
    }

    /// Takes the frames of others until none has come for a while, as a guest does all the time, so
    /// that there is room for an answer.
    fn catches_up(&mut self) {
        let mut last = Instant::now();
        while last.elapsed() < Duration::from_millis(200) {
            match self.pair.recv(|_| ()) {
                Some(()) => last = Instant::now(),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    fn must_hear(&mut self, kind: MessageType) -> Message {
        let message = self.hears(Duration::from_secs(60)).expect("an answer");
        assert_eq!(message.opts().msg_type(), Some(kind));
        message
    }

    /// Asks until the client has an address.
    fn leases(&mut self) -> Ipv4Addr {
        self.says(MessageType::Discover, self.number, &[]);
        let offer = self.must_hear(MessageType::Offer);
        let Some(DhcpOption::ServerIdentifier(WEIR)) =
            offer.opts().get(OptionCode::ServerIdentifier)
        else {
            panic!("{offer}")
        };
        let options =
            [DhcpOption::RequestedIpAddress(offer.yiaddr()), DhcpOption::ServerIdentifier(WEIR)];
        self.says(MessageType::Request, self.number, &options);
        let ack = self.must_hear(MessageType::Ack);
        assert_eq!(ack.yiaddr(), offer.yiaddr());
        ack.yiaddr()
    }
}

fn sum(bytes: &[u8]) -> u16 {
    let mut sum = weir_wire::Sum::new();
    sum.add(bytes);
    sum.finish()
}

fn sum_of_udp(frame: &[u8]) -> u16 {
    let mut sum = weir_wire::Sum::new();
    sum.add(&frame[26..34]);
    sum.add_u32(17);
    sum.add_u32(frame.len() as u32 - 34);
    sum.add(&frame[34..]);
    sum.finish()
}

/// A datagram without checksums, which few receivers check.
fn udp(number: u8, from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut ip = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[2..4].copy_from_slice(&(20 + len).to_be_bytes());
    ip[12..16].copy_from_slice(&from.0.octets());
    ip[16..].copy_from_slice(&to.0.octets());
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes(), len.to_be_bytes(), [0; 2]].concat();
    [&[0xff; 6][..], &mac(number), &[8, 0], &ip, &ports, payload].concat()
}

fn arp_for(number: u8, own: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let arp =
        [&[0, 1, 8, 0, 6, 4, 0, 1][..], &mac(number), &own.octets(), &[0; 6], &target.octets()];
    [&[0xff; 6][..], &mac(number), &[8, 6], &arp.concat(), &[0; 18]].concat()
}

impl Bench {
    fn answered(&self, what: &str) -> u64 {
        self.port("gateway.lan").answers.get(what).copied().unwrap_or(0)
    }

    fn stations(&self) -> Vec<AddressEntry> {
        match self.switch.handle(Request::Addresses(Part { after: None, limit: 4096 })) {
            Response::Addresses { addresses, .. } => addresses,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn guests_get_addresses_which_their_guards_and_others_know() {
    let vifs = "[vif.a]\nsource_guard = \"snooped\"\nmtu = 1400\n[vif.b]\n[vif.c]\n";
    let bench = Bench::with(&with_vifs(vifs));
    let [mut a, mut b, mut c] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| Client::of(&bench, vif, number));
    let address = a.leases();
    assert_eq!(b.leases(), FIXED);
    let other = c.leases();
    assert!(address != other && ![address, other].contains(&FIXED));
    let guard = bench.port("a").guard.unwrap();
    assert_eq!(guard.leases.iter().map(|it| it.address).collect::<Vec<_>>(), [address]);
    // The guest may send from this address, and others learn its owner.
    let mut frame = Vec::new();
    a.send(&arp_for(1, address, other));
    eventually("c hears it", || c.pair.recv_into(&mut frame).is_some() && frame[12..14] == [8, 6]);
    let station = bench.stations().into_iter().find(|it| it.port.as_str() == "a").unwrap();
    assert_eq!(station.ips, [std::net::IpAddr::from(address)]);
    assert_eq!((bench.answered("dhcp_offered"), bench.answered("dhcp_given")), (3, 3));
    // The offered MTU is the one of the interface.
    a.says(MessageType::Discover, 1, &[]);
    let offer = a.must_hear(MessageType::Offer);
    assert_eq!(offer.opts().get(OptionCode::InterfaceMtu), Some(&DhcpOption::InterfaceMtu(1400)));
    b.says(MessageType::Discover, 2, &[]);
    let offer = b.must_hear(MessageType::Offer);
    assert_eq!(offer.opts().get(OptionCode::InterfaceMtu), None);
}

#[test]
fn leases_outlive_weir() {
    let vifs = "[vif.a]\n[vif.c]\n";
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::within(dir, &with_vifs(vifs));
    let address = Client::of(&bench, "a", 1).leases();
    let Bench { switch, dir } = bench;
    drop(switch);
    let bench = Bench::within(dir, &with_vifs(vifs));
    let mut c = Client::of(&bench, "c", 3);
    // The address is still taken.
    c.says(MessageType::Request, 3, &[DhcpOption::RequestedIpAddress(address)]);
    c.must_hear(MessageType::Nak);
    assert_eq!(Client::of(&bench, "a", 1).leases(), address);
}

#[test]
fn weir_answers_at_its_own_address_and_at_no_other() {
    let bench = Bench::with(&with_vifs("[vif.a]\n[vif.c]\n"));
    let mut a = Client::of(&bench, "a", 1);
    let address = a.leases();
    a.send(&arp_for(1, address, Ipv4Addr::new(192, 168, 77, 1)));
    a.send(&arp_for(1, address, WEIR));
    let mut frame = Vec::new();
    eventually("an answer", || a.pair.recv_into(&mut frame).is_some() && frame[12..14] == [8, 6]);
    assert_eq!((&frame[20..22], &frame[28..32]), (&[0, 2][..], &WEIR.octets()[..]));
    let own: [u8; 6] = frame[6..12].try_into().unwrap();
    assert_eq!(frame[22..28], own);
    let question = [&own[..], &arp_for(1, address, WEIR)[6..]].concat();
    let traced = bench.switch.trace(&name("a"), &question).unwrap();
    assert_eq!(traced.delivered, [name("gateway.lan")]);
    let last = traced.steps.last().unwrap();
    assert!(last.says.contains("weir itself gets the frame"), "{last:?}");

    let echo = |to: Ipv4Addr, kind: u8| {
        let mut icmp = [&[kind, 0, 0, 0, 1, 2, 3, 4][..], b"some bytes"].concat();
        let sum = sum(&icmp);
        icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut echo = udp(1, (address, 0), (to, 0), &icmp[8..]);
        echo[..6].copy_from_slice(&own);
        echo[23] = 1;
        echo[34..42].copy_from_slice(&icmp[..8]);
        echo
    };
    // A reply, and a request to forward to another address, get no answer.
    a.send(&echo(WEIR, 0));
    a.send(&echo(Ipv4Addr::new(8, 8, 8, 8), 8));
    a.send(&echo(WEIR, 8));
    eventually("an answer", || a.pair.recv_into(&mut frame).is_some());
    assert_eq!((&frame[26..30], &frame[30..34]), (&WEIR.octets()[..], &address.octets()[..]));
    assert_eq!((frame[34], sum(&frame[34..])), (0, 0));
    assert_eq!(frame[38..], echo(WEIR, 8)[38..]);
    assert_eq!(bench.answered("echoes"), 1);
    assert_eq!(bench.answered("ignored"), 2);

    // No other guest may use weir's MAC address.
    let mut c = Client::of(&bench, "c", 3);
    let mut forged = arp_for(3, Ipv4Addr::new(192, 168, 77, 50), address);
    forged[6..12].copy_from_slice(&own);
    c.send(&forged);
    let owned = || bench.port("c").drops.get("src_mac_owned") == Some(&1);
    eventually("it is dropped", owned);
}

/// A question for the addresses of a name.
fn question(number: u16, name: &str) -> Vec<u8> {
    let labels =
        name.split('.').flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
    let head = [&number.to_be_bytes()[..], &[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    head.into_iter().chain(labels).chain([0, 0, 1, 0, 1]).collect()
}

#[test]
fn guests_find_each_other_by_names_and_a_flood_of_questions_costs_nobody_an_answer() {
    let bench = Bench::with(&with_vifs("[vif.a]\n[vif.b]\n[vif.c]\n"));
    let [mut a, mut c] = [("a", 1), ("c", 3)].map(|(vif, number)| Client::of(&bench, vif, number));
    a.says(MessageType::Discover, 1, &[]);
    let offer = a.must_hear(MessageType::Offer);
    let told = |code| offer.opts().get(code).cloned();
    let dns = Some(DhcpOption::DomainNameServer(vec![WEIR]));
    assert_eq!(told(OptionCode::DomainNameServer), dns);
    assert_eq!(told(OptionCode::DomainName), Some(DhcpOption::DomainName("internal".into())));
    let (address, other) = (a.leases(), c.leases());
    let own = Mac::from(weir_config::MacAddress::derived_from(&name("gateway.lan")));
    let asks = |client: &mut Client, from: Ipv4Addr, number: u16, name: &str| {
        let mut frame = udp(client.number, (from, 4000), (WEIR, 53), &question(number, name));
        frame[..6].copy_from_slice(&own.0);
        client.send(&frame);
    };
    let hears = |client: &mut Client, number: u16| {
        let mut frame = Vec::new();
        eventually("an answer", || {
            client.pair.recv_into(&mut frame).is_some()
                && frame.get(34..38) == Some(&[0, 53, 15, 160])
                && frame[42..44] == number.to_be_bytes()
        });
        assert_eq!((&frame[..6], frame[26..30] == WEIR.octets()), (&mac(client.number)[..], true));
        assert_eq!([sum(&frame[14..34]), sum_of_udp(&frame)], [0; 2]);
        (frame[45] & 15, frame[frame.len() - 4..].to_vec())
    };
    asks(&mut a, address, 1, "b.internal");
    assert_eq!(hears(&mut a, 1), (0, FIXED.octets().to_vec()));
    asks(&mut a, address, 2, "C.Internal");
    assert_eq!(hears(&mut a, 2), (0, other.octets().to_vec()));
    asks(&mut a, address, 3, "d.internal");
    assert_eq!(hears(&mut a, 3).0, 3);
    assert_eq!(bench.answered("dns_answered"), 3);
    // weir does not answer a question to its other address, or one without a source address.
    asks(&mut a, Ipv4Addr::UNSPECIFIED, 4, "b.internal");
    let mut elsewhere = udp(1, (address, 4000), (other, 53), &question(5, "b.internal"));
    elsewhere[..6].copy_from_slice(&own.0);
    a.send(&elsewhere);
    eventually("both are ignored", || bench.answered("ignored") == 2);
    for number in 0..2000 {
        asks(&mut a, address, number, "b.internal");
        if number % 100 == 0 {
            while a.pair.recv(|_| ()).is_some() {}
        }
    }
    assert!(bench.answered("over_rate") > 0);
    asks(&mut c, other, 6, "b.internal");
    assert_eq!(hears(&mut c, 6).0, 0);
    // The guest that floods still keeps its own address.
    while a.pair.recv(|_| ()).is_some() {}
    assert_eq!(a.leases(), address);
}

#[test]
fn a_guest_that_floods_costs_no_other_an_answer_or_an_address() {
    // The range has one address more than there are interfaces.
    let network = NETWORK.replace("100-192.168.77.199", "100-192.168.77.102");
    let bench = Bench::with(&format!("{network}[vif.a]\n[vif.c]\n"));
    let mut a = Client::of(&bench, "a", 1);
    let mut c = Client::of(&bench, "c", 3);
    for n in 0..2000_u16 {
        let id = DhcpOption::ClientIdentifier(n.to_be_bytes().to_vec());
        a.says(MessageType::Discover, 1, std::slice::from_ref(&id));
        // The requests use another client's address, and ask for another client's lease.
        a.says(MessageType::Discover, 3, &[id]);
        if n % 100 == 0 {
            while a.pair.recv(|_| ()).is_some() {}
        }
    }
    assert!(bench.answered("over_rate") > 0);
    c.catches_up();
    let had = c.leases();
    assert!(had != FIXED);
    assert!(bench.answered("dhcp_offered") < 200);
    // A release of another client's lease has no effect either.
    a.says(MessageType::Release, 3, &[]);
    assert_eq!(c.leases(), had);
}

#[test]
fn what_weir_answers_reaches_no_other_guest_and_what_it_does_not_reaches_all() {
    let bench = Bench::with(&with_vifs("[vif.a]\n[vif.b]\nrouter = true\n[vif.c]\nvlan = 7\n"));
    let [mut a, mut b] = [("a", 1), ("b", 2)].map(|(vif, it)| Client::of(&bench, vif, it));
    let address = a.leases();
    b.catches_up();
    let discover = |number: u8| {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(7, none, none, none, none, &mac(number));
        message.opts_mut().insert(DhcpOption::MessageType(MessageType::Discover));
        udp(number, (none, 68), (Ipv4Addr::BROADCAST, 67), &message.to_vec().unwrap())
    };
    // No client of DHCP asks from such a port.
    let others =
        [arp_for(1, address, FIXED), udp(1, (address, 1068), (Ipv4Addr::BROADCAST, 67), &[1; 240])];
    for frame in [discover(1), arp_for(1, address, WEIR)] {
        a.send(&frame);
        let traced = bench.switch.trace(&name("a"), &frame).unwrap();
        assert_eq!(traced.delivered, [name("gateway.lan")]);
        let kept = traced.steps.iter().find(|step| step.stage == "kept").unwrap();
        assert_eq!(kept.port, "gateway.lan");
        assert!(kept.says.contains("no other port gets it"), "{kept:?}");
    }
    let mut frame = Vec::new();
    for it in &others {
        a.send(it);
        let traced = bench.switch.trace(&name("a"), it).unwrap();
        assert!(traced.delivered.contains(&name("b")), "{traced:?}");
        eventually("b hears it", || b.pair.recv_into(&mut frame).is_some());
        assert_eq!(frame, *it, "b has heard what weir answers");
    }
    // In a VLAN in which weir serves nobody, the question is for everybody.
    let mut c = Client::of(&bench, "c", 3);
    assert_eq!(bench.set("a", "vlan=7"), Response::Ok);
    a.send(&discover(1));
    eventually("c hears it", || c.pair.recv_into(&mut frame).is_some() && frame == discover(1));
    drop(bench);

    // Without `dhcp`, weir does not answer either.
    let bench = Bench::with("[network.lan]\naddress = \"192.168.77.2/24\"\n[vif.a]\n[vif.b]\n");
    let [mut a, mut b] = [("a", 1), ("b", 2)].map(|(vif, it)| Client::of(&bench, vif, it));
    a.send(&discover(1));
    eventually("b hears it", || b.pair.recv_into(&mut frame).is_some() && frame == discover(1));
}

#[test]
fn guests_of_another_network_are_not_answered() {
    let vifs = "[vif.a]\nvlan = 7\n[vif.b]\ntrunk = \"all\"\n[vif.c]\nnetwork = \"lan\"\n";
    let bench = Bench::with(&with_vifs(vifs));
    let mut a = Client::of(&bench, "a", 1);
    let mut c = Client::of(&bench, "c", 3);
    a.says(MessageType::Discover, 1, &[]);
    c.leases();
    assert_eq!(a.hears(Duration::from_millis(300)), None);
    // The guest is served once it is in the network.
    assert_eq!(bench.set("a", "vlan=1"), Response::Ok);
    a.leases();
    assert_eq!(bench.set("a", "vlan=7"), Response::Ok);
    a.says(MessageType::Discover, 1, &[]);
    assert_eq!(a.hears(Duration::from_millis(300)), None);
}

#[test]
fn a_guest_in_a_closed_group_has_weirs_dhcp_and_arp_and_what_it_asks_for_itself() {
    let asks_names =
        "[group.names]\nrules = [{ direction = \"out\", protocol = \"udp\", ports = 53 }]\n";
    let groups =
        format!("[group.shut]\ndefault_out = \"deny\"\n{asks_names}default_out = \"deny\"\n");
    let vifs = "[vif.a]\ngroups = [\"shut\"]\n[vif.b]\n[vif.c]\n";
    let bench = Bench::with(&(groups + &with_vifs(vifs)));
    let [mut a, mut b, mut c] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| Client::of(&bench, vif, number));
    let (address, _, other) = (a.leases(), b.leases(), c.leases());
    a.send(&arp_for(1, address, WEIR));
    let mut frame = Vec::new();
    eventually("an answer", || a.pair.recv_into(&mut frame).is_some() && frame[12..14] == [8, 6]);
    assert_eq!(frame[28..32], WEIR.octets());
    let own: [u8; 6] = frame[6..12].try_into().unwrap();
    let refused = |vif: &str, reason: &str| bench.port(vif).drops.get(reason).copied().unwrap_or(0);
    let asks = |client: &mut Client, from: Ipv4Addr, number: u16| {
        let mut frame =
            udp(client.number, (from, 4000), (WEIR, 53), &question(number, "b.internal"));
        frame[..6].copy_from_slice(&own);
        client.send(&frame);
    };
    // Questions for names need a rule, and their answers need none.
    asks(&mut a, address, 1);
    eventually("the question is refused", || refused("a", "group_out") == 1);
    assert_eq!(bench.set("a", "groups=shut,names"), Response::Ok);
    asks(&mut a, address, 2);
    eventually("an answer", || {
        a.pair.recv_into(&mut frame).is_some() && frame.get(34..36) == Some(&[0, 53])
    });
    assert_eq!(frame[42..44], 2_u16.to_be_bytes());
    // Nobody else's datagram is taken for an answer of a server, whatever its ports are.
    let offer = udp(3, (other, 67), (address, 68), &[2; 240]);
    let kept_from = || refused("a", "group_in") + refused("c", "source_guard_ip");
    let before = kept_from();
    c.send(&[&mac(1)[..], &offer[6..]].concat());
    eventually("the forged answer is refused", || kept_from() == before + 1);
}

#[test]
fn a_closed_group_needs_rules_for_weirs_address_and_none_for_addresses_and_prefixes() {
    let network =
        NETWORK.replace("\"192.168.77.2/24\"", "[\"192.168.77.2/24\", \"fd00:77::2/64\"]");
    let group = |name: &str, rules: &str| {
        format!("[group.{name}]\ndefault_out = \"deny\"\nrules = [{rules}]\n")
    };
    let groups = group("shut", "")
        + &group("pings", "{ direction = \"out\", protocol = \"icmp\", types = 8 }")
        + &group(
            "renews",
            "{ direction = \"out\", protocol = \"udp\", ports = 67, to = \"192.168.77.2\" }",
        )
        + &group("ssh", "{ direction = \"in\", protocol = \"udp\", ports = 22 }");
    let vifs = "ra = true\n[vif.a]\ngroups = [\"shut\"]\n[vif.c]\nrouter = true\n";
    let bench = Bench::with(&(groups + &network + vifs));
    let [mut a, mut c] = [("a", 1), ("c", 3)].map(|(vif, number)| Client::of(&bench, vif, number));
    let (address, other) = (a.leases(), c.leases());
    let refused = |reason: &str| bench.port("a").drops.get(reason).copied().unwrap_or(0);
    let mut frame = Vec::new();
    // Routers are asked for and answer.
    a.send(&solicit(1, 255));
    eventually("prefixes", || {
        a.pair.recv_into(&mut frame).is_some() && frame.get(54) == Some(&134)
    });
    let own: [u8; 6] = frame[6..12].try_into().unwrap();
    let to_weir = |bytes: &[u8]| [&own[..], &bytes[6..]].concat();
    // A lease is renewed by unicast only by a rule, and by broadcast in any case.
    let renewal = |number: u32| {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message = Message::new_with_id(number, address, none, none, none, &mac(1));
        message.opts_mut().insert(DhcpOption::MessageType(MessageType::Request));
        to_weir(&udp(1, (address, 68), (WEIR, 67), &message.to_vec().unwrap()))
    };
    a.send(&renewal(1));
    eventually("it is refused", || refused("group_out") == 1);
    assert_eq!(a.leases(), address);
    assert_eq!(bench.set("a", "groups=shut,renews"), Response::Ok);
    a.send(&renewal(1));
    assert_eq!(a.must_hear(MessageType::Ack).yiaddr(), address);
    // A ping of weir needs a rule, and its answer does not.
    let ping = {
        let mut ping = udp(1, (address, 0x0800), (WEIR, 0), &[0; 24]);
        (ping[23], ping[36], ping[37]) = (1, 0xf7, 0xff);
        (ping[38], ping[39]) = (0, 0);
        let sum = sum(&ping[14..34]).to_be_bytes();
        ping[24..26].copy_from_slice(&sum);
        to_weir(&ping)
    };
    a.send(&ping);
    eventually("it is refused", || refused("group_out") == 2);
    assert_eq!(bench.set("a", "groups=shut,pings"), Response::Ok);
    a.send(&ping);
    eventually("an answer", || {
        a.pair.recv_into(&mut frame).is_some()
            && frame.get(23) == Some(&1)
            && frame.get(34) == Some(&0)
    });
    // A connection that a router forwards from outside is inbound.
    let comes = [&mac(1)[..], &udp(3, (other, 4000), (address, 22), b"in")[6..]].concat();
    // The other guest's questions to all are refused as well.
    let before = refused("group_in");
    c.send(&comes);
    eventually("it is refused", || refused("group_in") == before + 1);
    assert_eq!(bench.set("a", "groups=shut,ssh"), Response::Ok);
    c.send(&comes);
    eventually("it comes", || a.pair.recv_into(&mut frame).is_some() && frame == comes);
    let back = [&mac(3)[..], &udp(1, (address, 22), (other, 4000), b"back")[6..]].concat();
    a.send(&back);
    eventually("the answer", || c.pair.recv_into(&mut frame).is_some() && frame == back);
    assert_eq!((refused("group_out"), refused("group_in")), (2, before + 1));
}

/// A solicitation of routers.
fn solicit(number: u8, hops: u8) -> Vec<u8> {
    let all_routers = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    let ip = [&[0x60, 0, 0, 0, 0, 8, 58, hops][..], &[0; 16], &all_routers].concat();
    let summed = [&all_routers[..], &[0, 8, 0, 58], &[133, 0, 0, 0, 0, 0, 0, 0]].concat();
    let [high, low] = sum(&summed).to_be_bytes();
    let message = [133, 0, high, low, 0, 0, 0, 0];
    [&[0x33, 0x33, 0, 0, 0, 2], &mac(number)[..], &[0x86, 0xdd], &ip, &message].concat()
}

#[test]
fn a_guest_is_no_server_and_not_weir_unless_it_is_configured_so() {
    let bench = Bench::with(&with_vifs("[vif.a]\n[vif.b]\n[vif.c]\nrouter = true\n"));
    let [mut a, mut b, mut c] =
        [("a", 1), ("b", 2), ("c", 3)].map(|(vif, number)| Client::of(&bench, vif, number));
    let [address, other] = [a.leases(), c.leases()];
    let offer = |number| udp(number, (other, 67), (Ipv4Addr::BROADCAST, 68), &[2; 240]);
    let router = Ipv4Addr::new(192, 168, 77, 1);
    a.send(&offer(1));
    a.send(&arp_for(1, WEIR, address));
    a.send(&arp_for(1, router, address));
    let drops = || bench.port("a").drops;
    eventually("they are dropped", || drops().values().sum::<u64>() == 3);
    assert_eq!((drops()["source_guard_ip"], drops()["source_guard_arp"]), (1, 2));
    // In another network the guest may send this, and back in this network it may not.
    assert_eq!(bench.set("a", "vlan=7"), Response::Ok);
    a.send(&arp_for(1, WEIR, address));
    eventually("it is sent", || bench.port("a").tx.frames >= 6);
    assert_eq!(bench.set("a", "vlan=1"), Response::Ok);
    a.send(&arp_for(1, WEIR, address));
    eventually("it is dropped", || drops()["source_guard_arp"] == 3);
    let mut frame = Vec::new();
    c.send(&offer(3));
    eventually("b hears it", || b.pair.recv_into(&mut frame).is_some() && frame == offer(3));
}

#[test]
fn a_guest_that_asks_for_routers_is_told_of_prefixes_alone() {
    let network = "[network.lan]\naddress = [\"fd00:77::2/64\", \"fd00:78::2/56\"]\nra = true\ndns = \"fd00::53\"\n";
    let bench = Bench::with(&format!("{network}[vif.a]\nmtu = 1400\n[vif.c]\n"));
    let [mut a, mut c] = [("a", 1), ("c", 3)].map(|(vif, number)| Client::of(&bench, vif, number));
    // A solicitation with another hop limit comes from outside the link and is not answered.
    a.send(&solicit(1, 64));
    a.send(&solicit(1, 255));
    let mut frame = Vec::new();
    eventually("an answer", || {
        a.pair.recv_into(&mut frame).is_some() && frame.get(54) == Some(&134)
    });
    assert_eq!(bench.answered("advertised"), 1);
    assert_eq!((&frame[..6], frame[21]), (&mac(1)[..], 255));
    // The checksum, the lifetime of a router, and the options in their order.
    let mut sum = weir_wire::Sum::new();
    sum.add(&frame[22..54]);
    sum.add_u32(frame.len() as u32 - 54);
    sum.add_u32(58);
    sum.add(&frame[54..]);
    assert_eq!((sum.finish(), &frame[60..62]), (0, &[0, 0][..]));
    let options = &frame[70..];
    assert_eq!((&options[..2], &options[2..8]), (&[1, 1][..], &frame[6..12]));
    assert_eq!(options[8..16], [5, 1, 0, 0, 0, 0, 5, 120]);
    // Hosts form addresses only from prefixes of 64 bits.
    assert_eq!(
        (&options[16..20], &options[48..52]),
        (&[3, 4, 64, 0xc0][..], &[3, 4, 56, 0x80][..])
    );
    assert_eq!(options[32..48], [0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(options[80..82], [25, 3]);
    assert_eq!(options[88..], [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x53]);
    // DHCPv6 has the server, too.
    assert_eq!(frame[59], 0x40);
    let servers = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2];
    let near = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let request = [11, 1, 2, 3, 0, 1, 0, 4, 0, 3, 0, 1, 0, 6, 0, 2, 0, 23];
    let udp = [2, 34, 2, 35, 0, 26, 0, 0];
    let headers = [&[0x60, 0, 0, 0, 0, 26, 17, 1][..], &near, &servers, &udp].concat();
    a.send(&[&[0x33, 0x33, 0, 1, 0, 2][..], &mac(1), &[0x86, 0xdd], &headers, &request].concat());
    eventually("an answer", || {
        a.pair.recv_into(&mut frame).is_some() && frame.get(54..58) == Some(&[2, 35, 2, 34][..])
    });
    assert_eq!((&frame[..6], &frame[38..54]), (&mac(1)[..], &near[..]));
    assert_eq!(frame[62..66], [7, 1, 2, 3]);
    let server = [0, 23, 0, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x53];
    assert!(frame.windows(server.len()).any(|it| it == server), "{frame:x?}");
    assert_eq!(bench.answered("dhcp_informed"), 1);
    // Other guests received the solicitation, but not the answer.
    eventually("c hears it", || {
        c.pair.recv_into(&mut frame).is_some() && frame.get(54) == Some(&133)
    });
    c.says(MessageType::Discover, 3, &[]);
    std::thread::sleep(Duration::from_millis(50));
    while c.pair.recv_into(&mut frame).is_some() {
        assert_ne!(frame.get(54), Some(&134));
        assert_ne!(
            frame.get(54..58),
            Some(&[2, 34, 2, 35][..]),
            "what weir answers is for weir alone"
        );
    }
    // weir is no router here, and neither is a guest.
    a.send(
        &solicit(1, 255)
            .iter()
            .enumerate()
            .map(|(at, byte)| if at == 54 { 134 } else { *byte })
            .collect::<Vec<_>>(),
    );
    eventually("it is dropped", || bench.port("a").drops.get("source_guard_nd") == Some(&1));
}

#[test]
fn nothing_else_is_called_as_weirs_own_port() {
    let bench = Bench::with(&with_vifs("[vif.a]\n"));
    let socket = bench.dir.path().join("other.sock");
    let socket = SocketPath::try_from(socket.as_path()).unwrap();
    let config = VifConfig::new(name("gateway.lan"), socket);
    let added = bench.switch.handle(Request::VifAdd { config: config.into() });
    assert!(
        matches!(&added, Response::Error { message, .. } if message.contains("exists")),
        "{added:?}"
    );
}
