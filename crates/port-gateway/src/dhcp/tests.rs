//! Cases of RFC 2131, and attempts of a guest to get more than its share.

use proptest::prelude::*;
use weir_limits::{DHCP_ROUTES_MAX, LEASES_PER_VIF_MAX};

use super::*;

const OWN: &str = "192.168.77.2/24";
const OWN_IP: &str = "192.168.77.2";
const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const OTHER: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);
const XID: u32 = 0xfeed_4711;

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn settings(range: RangeInclusive<&str>) -> DhcpSettings {
    DhcpSettings {
        own: OWN.parse().unwrap(),
        range: ip(range.start())..=ip(range.end()),
        router: Some(ip("192.168.77.1")),
        routes: Vec::new(),
        dns: vec![ip("192.168.77.1"), ip("9.9.9.9")],
        domain: Some("internal".into()),
        lease_secs: 3600,
        fixed: [("db0".to_owned(), ip("192.168.77.10"))].into(),
        boot: BootSettings::default(),
    }
}

fn server() -> Dhcp {
    let mut server = Dhcp::new(settings("192.168.77.100"..="192.168.77.199"), Leases::default());
    server.set_vifs(["web0", "db0", "rogue"].map(|vif| (vif.to_owned(), None)));
    server
}

fn asker(vif: &str, mac: Mac) -> Asker<'_> {
    Asker { vif, mac, mtu: Some(1450) }
}

/// A client's message.
fn message(kind: MessageType, mac: Mac, options: impl IntoIterator<Item = DhcpOption>) -> Message {
    let none = Ipv4Addr::UNSPECIFIED;
    let mut message = Message::new_with_id(XID, none, none, none, none, &mac.0);
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    for option in options {
        message.opts_mut().insert(option);
    }
    message
}

fn asked(address: Ipv4Addr) -> DhcpOption {
    DhcpOption::RequestedIpAddress(address)
}

fn to_weir() -> DhcpOption {
    DhcpOption::ServerIdentifier(ip("192.168.77.2"))
}

/// The server's answer to a message.
fn say(
    server: &mut Dhcp,
    asker: &Asker<'_>,
    message: &Message,
    now_secs: u32,
) -> (Done, Option<(Message, Ipv4Addr)>) {
    let (done, reply) = server.take(asker, &message.to_vec().unwrap(), now_secs);
    let reply = reply.map(|reply| {
        assert!(reply.bytes.len() >= MESSAGE_LEN_MIN, "a client may take it for BOOTP's");
        (Message::decode(&mut Decoder::new(&reply.bytes)).unwrap(), reply.to)
    });
    (done, reply)
}

/// Asks for an address as a client does, and says which one it gets.
fn lease(server: &mut Dhcp, vif: &str, mac: Mac, now_secs: u32) -> Option<Ipv4Addr> {
    lease_as(server, &asker(vif, mac), None, now_secs)
}

fn lease_as(
    server: &mut Dhcp,
    asker: &Asker<'_>,
    id: Option<&[u8]>,
    now_secs: u32,
) -> Option<Ipv4Addr> {
    let id = || id.map(|id| DhcpOption::ClientIdentifier(id.to_vec()));
    let (_, offer) = say(server, asker, &message(MessageType::Discover, asker.mac, id()), now_secs);
    let offered = offer?.0.yiaddr();
    let options = [asked(offered), to_weir()].into_iter().chain(id());
    let (done, ack) =
        say(server, asker, &message(MessageType::Request, asker.mac, options), now_secs);
    assert_eq!(done, Done::Given);
    let ack = ack.unwrap().0;
    assert_eq!((ack.opts().msg_type(), ack.yiaddr()), (Some(MessageType::Ack), offered));
    Some(offered)
}

#[test]
fn spec_4_3_1_an_offer_has_an_address_of_the_range_and_all_that_is_configured() {
    let mut server = server();
    let discover =
        message(MessageType::Discover, MAC, [DhcpOption::ClientIdentifier(vec![1, 2, 3])]);
    let (done, offer) = say(&mut server, &asker("web0", MAC), &discover, 0);
    let (offer, to) = offer.unwrap();
    assert_eq!((done, offer.opcode(), offer.xid()), (Done::Offered, Opcode::BootReply, XID));
    assert!(server.settings.range.contains(&offer.yiaddr()));
    assert_eq!((to, offer.chaddr()), (offer.yiaddr(), &MAC.0[..]));
    let has = |option: DhcpOption| {
        assert!(offer.opts().iter().any(|(_, it)| *it == option), "{option:?}")
    };
    has(DhcpOption::MessageType(MessageType::Offer));
    has(to_weir());
    has(DhcpOption::SubnetMask(ip("255.255.255.0")));
    has(DhcpOption::BroadcastAddr(ip("192.168.77.255")));
    has(DhcpOption::Router(vec![ip("192.168.77.1")]));
    has(DhcpOption::DomainNameServer(vec![ip("192.168.77.1"), ip("9.9.9.9")]));
    has(DhcpOption::DomainName("internal".into()));
    has(DhcpOption::InterfaceMtu(1450));
    has(DhcpOption::AddressLeaseTime(3600));
    has(DhcpOption::Renewal(1800));
    has(DhcpOption::Rebinding(3150));
    // RFC 6842 §3.
    has(DhcpOption::ClientIdentifier(vec![1, 2, 3]));
}

/// A server of a network in which 192.168.77.101 and the guest db0 are gateways.
fn routing_server() -> Dhcp {
    let mut settings = settings("192.168.77.100"..="192.168.77.103");
    let route = |prefix: &str, gateway| (prefix.parse::<Ipv4Net>().unwrap(), ip(gateway));
    settings.routes =
        vec![route("10.0.0.0/8", "192.168.77.101"), route("172.16.8.0/21", "192.168.77.10")];
    let mut server = Dhcp::new(settings, Leases::default());
    server.set_vifs(["web0", "db0", "rogue"].map(|vif| (vif.to_owned(), None)));
    server
}

/// The bytes of option 121 in the answer to a DISCOVER message with these further options.
fn routes(server: &mut Dhcp, more: &[u8]) -> Option<Vec<u8>> {
    let bytes = with_options(MessageType::Discover, more);
    let (_, reply) = server.take(&asker("web0", MAC), &bytes, 0);
    let bytes = reply.unwrap().bytes;
    let mut rest = &bytes[OPTIONS..];
    while let [code, len, after @ ..] = rest {
        let (value, after) = after.split_at(usize::from(*len));
        match *code {
            END => break,
            121 => return Some(value.to_vec()),
            _ => rest = after,
        }
    }
    None
}

#[test]
fn rfc_3442_a_client_that_asks_for_routes_gets_all_and_the_default_one() {
    let own = [&[8, 10, 192, 168, 77, 101][..], &[21, 172, 16, 8, 192, 168, 77, 10]].concat();
    let all = [&own[..], &[0, 192, 168, 77, 1]].concat();
    let mut server = routing_server();
    assert_eq!(routes(&mut server, &[55, 2, 3, 121]), Some(all));
    assert_eq!(routes(&mut server, &[55, 2, 1, 3]), None);
    assert_eq!(routes(&mut server, &[]), None);
    server.settings.router = None;
    assert_eq!(routes(&mut server, &[55, 1, 121]), Some(own));
    server.settings.routes.clear();
    assert_eq!(routes(&mut server, &[55, 1, 121]), None);
    // The most routes with the longest prefixes fit into one option.
    let longest = |last: usize| (Ipv4Net::from(Ipv4Addr::new(10, 0, 0, last as u8)), ip(OWN_IP));
    server.settings.routes = (0..DHCP_ROUTES_MAX).map(longest).collect();
    server.settings.router = Some(ip("192.168.77.1"));
    assert_eq!(routes(&mut server, &[55, 1, 121]).map(|it| it.len()), Some(9 * 16 + 5));
}

#[test]
fn a_gateways_address_is_given_to_its_own_guest_alone() {
    let mut server = routing_server();
    let wanted = message(MessageType::Request, MAC, [asked(ip("192.168.77.101"))]);
    assert_eq!(say(&mut server, &asker("web0", MAC), &wanted, 0).0, Done::Refused);
    // One address is left for `rogue`.
    let of_web = |last| lease(&mut server, "web0", Mac([2, 0, 0, 0, 0, last]), 0);
    let mut given: Vec<_> = (0..4).filter_map(of_web).collect();
    assert_eq!(given.len(), 2);
    given.extend(lease(&mut server, "rogue", OTHER, 0));
    given.sort();
    assert_eq!(given, ["192.168.77.100", "192.168.77.102", "192.168.77.103"].map(ip));
    assert_eq!(lease(&mut server, "db0", OTHER, 0), Some(ip("192.168.77.10")));
}

#[test]
fn spec_4_1_a_client_that_asks_for_broadcasts_gets_them() {
    let mut server = server();
    let mut discover = message(MessageType::Discover, MAC, []);
    discover.set_flags(discover.flags().set_broadcast());
    let (_, offer) = say(&mut server, &asker("web0", MAC), &discover, 0);
    let (offer, to) = offer.unwrap();
    assert_eq!((to, offer.flags().broadcast()), (Ipv4Addr::BROADCAST, true));
}

#[test]
fn spec_4_3_1_a_client_gets_the_address_that_it_has_or_had_or_asks_for() {
    let mut server = server();
    let had = lease(&mut server, "web0", MAC, 0).unwrap();
    assert_eq!(lease(&mut server, "web0", MAC, 10), Some(had));
    // The lease has run out, and the client still gets this address.
    assert_eq!(lease(&mut server, "web0", MAC, 100_000), Some(had));
    let wanted = ip("192.168.77.150");
    let discover = message(MessageType::Discover, OTHER, [asked(wanted)]);
    let (_, offer) = say(&mut server, &asker("rogue", OTHER), &discover, 0);
    assert_eq!(offer.unwrap().0.yiaddr(), wanted);
}

#[test]
fn spec_4_3_1_a_shorter_time_that_a_client_asks_for_is_granted_and_a_longer_one_is_not() {
    let mut server = server();
    for (asked, granted) in [(600, 600), (1, 120), (u32::MAX, 3600)] {
        let discover = message(MessageType::Discover, MAC, [DhcpOption::AddressLeaseTime(asked)]);
        let (_, offer) = say(&mut server, &asker("web0", MAC), &discover, 0);
        let offer = offer.unwrap().0;
        let secs = offer.opts().get(OptionCode::AddressLeaseTime).unwrap();
        assert_eq!(*secs, DhcpOption::AddressLeaseTime(granted));
    }
}

#[test]
fn spec_4_3_2_a_request_for_another_servers_offer_gives_weirs_offer_back() {
    let mut server = server();
    let discover = message(MessageType::Discover, MAC, []);
    let (_, offer) = say(&mut server, &asker("web0", MAC), &discover, 0);
    let offered = offer.unwrap().0.yiaddr();
    let elsewhere = DhcpOption::ServerIdentifier(ip("192.168.77.66"));
    let request = message(MessageType::Request, MAC, [asked(ip("192.168.77.99")), elsewhere]);
    assert_eq!(say(&mut server, &asker("web0", MAC), &request, 0), (Done::Ignored, None));
    assert_eq!(server.leases.get(offered), None);
}

#[test]
fn spec_4_3_2_a_client_that_comes_back_keeps_its_address_or_is_told_to_ask_anew() {
    let mut server = server();
    let had = lease(&mut server, "web0", MAC, 0).unwrap();
    let back = |address| message(MessageType::Request, MAC, [asked(address)]);
    let (done, ack) = say(&mut server, &asker("web0", MAC), &back(had), 10);
    assert_eq!((done, ack.unwrap().0.yiaddr()), (Done::Given, had));
    // Addresses of another network, weir's own, outside the range, and fixed for another guest.
    for wrong in ["10.0.0.5", "192.168.77.2", "192.168.77.1", "192.168.77.50", "192.168.77.10"] {
        let (done, nak) = say(&mut server, &asker("web0", MAC), &back(ip(wrong)), 10);
        let (nak, to) = nak.unwrap();
        assert_eq!((done, to), (Done::Refused, Ipv4Addr::BROADCAST), "{wrong}");
        assert_eq!(nak.opts().msg_type(), Some(MessageType::Nak));
        assert_eq!(nak.opts().get(OptionCode::AddressLeaseTime), None);
    }
    // Another guest's.
    let (done, _) = say(
        &mut server,
        &asker("rogue", OTHER),
        &message(MessageType::Request, OTHER, [asked(had)]),
        10,
    );
    assert_eq!(done, Done::Refused);
}

#[test]
fn a_client_that_weir_does_not_remember_keeps_a_free_address() {
    let mut server = server();
    let wanted = ip("192.168.77.123");
    let request = message(MessageType::Request, MAC, [asked(wanted)]);
    let (done, ack) = say(&mut server, &asker("web0", MAC), &request, 0);
    assert_eq!((done, ack.unwrap().0.yiaddr()), (Done::Given, wanted));
}

#[test]
fn spec_4_3_2_a_renewal_counts_from_now_and_is_answered_to_the_client_itself() {
    let mut server = server();
    let had = lease(&mut server, "web0", MAC, 0).unwrap();
    let mut renew = message(MessageType::Request, MAC, []);
    renew.set_ciaddr(had);
    let (done, ack) = say(&mut server, &asker("web0", MAC), &renew, 1800);
    let (ack, to) = ack.unwrap();
    assert_eq!((done, ack.yiaddr(), ack.ciaddr(), to), (Done::Given, had, had, had));
    assert_eq!(server.leases.get(had).unwrap().until_secs, 1800 + 3600);
    // The guest asks for somebody else's address as if it were its own.
    let mut theft = message(MessageType::Request, OTHER, []);
    theft.set_ciaddr(had);
    let (done, nak) = say(&mut server, &asker("rogue", OTHER), &theft, 1800);
    assert_eq!((done, nak.unwrap().0.opts().msg_type()), (Done::Refused, Some(MessageType::Nak)));
}

#[test]
fn spec_4_3_3_an_address_that_is_in_use_is_given_to_nobody_for_a_while() {
    let mut server = server();
    let bad = lease(&mut server, "web0", MAC, 0).unwrap();
    let decline = message(MessageType::Decline, MAC, [asked(bad), to_weir()]);
    assert_eq!(say(&mut server, &asker("web0", MAC), &decline, 1), (Done::Declined, None));
    let other = lease(&mut server, "web0", MAC, 2).unwrap();
    assert_ne!(other, bad);
    let request = message(MessageType::Request, OTHER, [asked(bad)]);
    assert_eq!(say(&mut server, &asker("rogue", OTHER), &request, 3).0, Done::Refused);
    assert_eq!(say(&mut server, &asker("rogue", OTHER), &request, 1000).0, Done::Given);
}

#[test]
fn spec_4_3_4_an_address_that_was_given_back_is_free_and_its_client_is_remembered() {
    let mut server = server();
    let had = lease(&mut server, "web0", MAC, 0).unwrap();
    let mut release = message(MessageType::Release, MAC, [to_weir()]);
    release.set_ciaddr(had);
    assert_eq!(say(&mut server, &asker("web0", MAC), &release, 5), (Done::Released, None));
    assert_eq!(server.leases.held(5), 0);
    assert_eq!(lease(&mut server, "web0", MAC, 6), Some(had));
}

#[test]
fn spec_4_3_5_who_has_an_address_gets_settings_and_no_address() {
    let mut server = server();
    let mut inform = message(MessageType::Inform, MAC, []);
    inform.set_ciaddr(ip("192.168.77.50"));
    let (done, ack) = say(&mut server, &asker("web0", MAC), &inform, 0);
    let (ack, to) = ack.unwrap();
    assert_eq!(
        (done, to, ack.yiaddr()),
        (Done::Informed, ip("192.168.77.50"), Ipv4Addr::UNSPECIFIED)
    );
    assert_eq!(ack.opts().get(OptionCode::AddressLeaseTime), None);
    assert!(ack.opts().contains(OptionCode::Router));
    assert_eq!(server.leases.held(0), 0);
}

#[test]
fn messages_in_anothers_name_or_by_a_relay_or_without_options_are_ignored() {
    let mut server = server();
    let ignored = (Done::Ignored, None);
    let discover = message(MessageType::Discover, OTHER, []);
    assert_eq!(say(&mut server, &asker("web0", MAC), &discover, 0), ignored);
    let mut relayed = message(MessageType::Discover, MAC, []);
    relayed.set_giaddr(ip("192.168.77.9"));
    assert_eq!(say(&mut server, &asker("web0", MAC), &relayed, 0), ignored);
    let mut answer = message(MessageType::Discover, MAC, []);
    answer.set_opcode(Opcode::BootReply);
    assert_eq!(say(&mut server, &asker("web0", MAC), &answer, 0), ignored);
    let mut bytes = message(MessageType::Discover, MAC, []).to_vec().unwrap();
    bytes[COOKIE] ^= 1;
    assert_eq!(server.take(&asker("web0", MAC), &bytes, 0), (Done::Ignored, None));
    let server_says = message(MessageType::Offer, MAC, []);
    assert_eq!(say(&mut server, &asker("web0", MAC), &server_says, 0), ignored);
    assert_eq!(server.leases.iter().count(), 0);
}

#[test]
fn a_fixed_address_is_its_interfaces_and_nobody_elses() {
    let mut server = server();
    let fixed = ip("192.168.77.10");
    assert_eq!(lease(&mut server, "db0", MAC, 0), Some(fixed));
    // A boot ROM and a system give themselves different names.
    let renamed = lease_as(&mut server, &asker("db0", MAC), Some(b"system"), 1);
    assert_eq!(renamed, Some(fixed));
    let request = message(MessageType::Request, OTHER, [asked(fixed)]);
    assert_eq!(say(&mut server, &asker("rogue", OTHER), &request, 2).0, Done::Refused);
    // The interface's own configuration fixes the address.
    server.set_vifs([("web0".to_owned(), Some(ip("192.168.77.20")))]);
    assert_eq!(lease(&mut server, "web0", OTHER, 3), Some(ip("192.168.77.20")));
}

#[test]
fn an_address_that_becomes_fixed_waits_for_who_has_it() {
    let mut server = server();
    let had = lease(&mut server, "rogue", OTHER, 0).unwrap();
    server.set_vifs([("web0".to_owned(), Some(had)), ("rogue".to_owned(), None)]);
    assert_eq!(lease(&mut server, "web0", MAC, 1), None);
    let mut renew = message(MessageType::Request, OTHER, []);
    renew.set_ciaddr(had);
    assert_eq!(say(&mut server, &asker("rogue", OTHER), &renew, 2).0, Done::Refused);
    assert_eq!(lease(&mut server, "web0", MAC, 4000), Some(had));
}

#[test]
fn an_address_that_a_client_leaves_for_another_is_its_own_until_its_time_is_over() {
    let mut server = server();
    let [left, taken] = [ip("192.168.77.104"), ip("192.168.77.100")];
    for address in [left, taken] {
        let request = message(MessageType::Request, MAC, [asked(address)]);
        assert_eq!(say(&mut server, &asker("web0", MAC), &request, 0).0, Done::Given);
    }
    let request = message(MessageType::Request, OTHER, [asked(left)]);
    assert_eq!(say(&mut server, &asker("rogue", OTHER), &request, 3599).0, Done::Refused);
    // The client may continue to use either address, even if no other is free.
    let range = "192.168.77.100"..="192.168.77.101";
    let mut full = Dhcp::new(settings(range), Leases::default());
    full.set_vifs([("web0".to_owned(), None)]);
    let both = [taken, ip("192.168.77.101")];
    for address in both.into_iter().chain(both) {
        let request = message(MessageType::Request, MAC, [asked(address)]);
        assert_eq!(say(&mut full, &asker("web0", MAC), &request, 0).0, Done::Given, "{address}");
    }
    assert_eq!(say(&mut server, &asker("rogue", OTHER), &request, 3600).0, Done::Given);
    assert_eq!(lease(&mut server, "web0", MAC, 3601), Some(taken));
}

#[test]
fn a_client_identifier_counts_behind_its_own_interface_only() {
    let mut server = server();
    let had = lease_as(&mut server, &asker("web0", MAC), Some(b"web0's"), 0).unwrap();
    let other = lease_as(&mut server, &asker("rogue", OTHER), Some(b"web0's"), 0).unwrap();
    assert_ne!(had, other);
    assert_eq!(server.leases.get(had).unwrap().client.vif, "web0");
    let release = |ciaddr| {
        let mut message = message(
            MessageType::Release,
            OTHER,
            [DhcpOption::ClientIdentifier(b"web0's".to_vec())],
        );
        message.set_ciaddr(ciaddr);
        message
    };
    assert_eq!(say(&mut server, &asker("rogue", OTHER), &release(had), 1), (Done::Ignored, None));
    assert_eq!(server.leases.held_by("web0", 1), 1);
}

#[test]
fn a_guest_with_many_names_leaves_an_address_for_each_other_interface() {
    let range = "192.168.77.100"..="192.168.77.103";
    let mut server = Dhcp::new(settings(range), Leases::default());
    server.set_vifs(["rogue", "web0", "web1"].map(|vif| (vif.to_owned(), None)));
    let mut got = BTreeSet::new();
    for name in 0..100_u8 {
        let mac = Mac([0x52, 0x54, 0, 0, 1, name]);
        got.extend(lease_as(&mut server, &asker("rogue", mac), Some(&[name]), 0));
        // A guest gets no more addresses if it declines each, either.
        for address in got.clone() {
            let options = [asked(address), to_weir(), DhcpOption::ClientIdentifier(vec![name])];
            say(&mut server, &asker("rogue", mac), &message(MessageType::Decline, mac, options), 0);
        }
    }
    assert_eq!(got.len(), 2, "of four addresses two are kept");
    assert!(lease(&mut server, "web0", MAC, 1).is_some());
    assert!(lease(&mut server, "web1", OTHER, 1).is_some());
}

#[test]
fn an_interface_has_so_many_addresses_at_a_time_and_no_more() {
    let mut server = server();
    let names = 0..2 * LEASES_PER_VIF_MAX as u8;
    let got =
        names.filter_map(|name| lease_as(&mut server, &asker("rogue", MAC), Some(&[name]), 0));
    assert_eq!(got.count(), LEASES_PER_VIF_MAX);
}

/// The server of a network with files for firmware.
fn boot_server() -> Dhcp {
    let mut settings = settings("192.168.77.100"..="192.168.77.199");
    let file = |name: &str| Some(name.to_owned());
    settings.boot = BootSettings {
        server: Some(ip("192.168.77.1")),
        ipxe: file("http://192.168.77.1/menu.ipxe"),
        by_architecture: [(0, "undionly.kpxe"), (7, "ipxe.efi"), (22, "u-boot.scr")]
            .map(|(number, name)| (number, name.to_owned()))
            .into(),
        others: file("vmlinuz"),
    };
    let mut server = Dhcp::new(settings, Leases::default());
    server.set_vifs([("web0".to_owned(), None)]);
    server
}

/// Options of a client, each with its length in front, as they are in its message.
fn with_options(kind: MessageType, more: &[u8]) -> Vec<u8> {
    let mut bytes = message(kind, MAC, []).to_vec().unwrap();
    assert_eq!(bytes.pop(), Some(END));
    bytes.extend(more);
    bytes.push(END);
    bytes
}

/// The values for a client's boot: siaddr, the header's file, and options 66 and 67.
fn booted(server: &mut Dhcp, kind: MessageType, more: &[u8]) -> (Ipv4Addr, String, String, String) {
    let (_, reply) = server.take(&asker("web0", MAC), &with_options(kind, more), 0);
    let bytes = reply.unwrap().bytes;
    let answer = Message::decode(&mut Decoder::new(&bytes)).unwrap();
    let file: Vec<u8> = bytes[108..COOKIE].iter().copied().take_while(|it| *it != 0).collect();
    let option = |code| match answer.opts().get(code) {
        Some(DhcpOption::TFTPServerName(text) | DhcpOption::BootfileName(text)) => text.clone(),
        _ => Vec::new(),
    };
    assert!(!answer.opts().contains(OptionCode::ClassIdentifier));
    let [file, name, file_name] =
        [file, option(OptionCode::TFTPServerName), option(OptionCode::BootfileName)]
            .map(|it| String::from_utf8(it).unwrap());
    (answer.siaddr(), file, name, file_name)
}

/// Option 60 of a PXE client, and options 93 and 55.
fn pxe(architecture: u8, wanted: &[u8]) -> Vec<u8> {
    let class = format!("PXEClient:Arch:{architecture:05}:UNDI:003016");
    let mut options = vec![60, class.len() as u8];
    options.extend(class.as_bytes());
    options.extend([94, 3, 1, 3, 16, 93, 2, 0, architecture, 55, wanted.len() as u8]);
    options.extend(wanted);
    options
}

#[test]
fn firmware_learns_its_file_and_server_as_it_asks_for_them() {
    let server = || boot_server();
    let own = ip("192.168.77.1");
    let told = |file: &str, name: &str, option: &str| {
        (own, file.to_owned(), name.to_owned(), option.to_owned())
    };
    let discover = |options: &[u8]| booted(&mut server(), MessageType::Discover, options);
    // The lists of QEMU 7.2's iPXE, of OVMF 2022.11, of U-Boot 2023.01 and of SLOF.
    let vendors = [128, 129, 130, 131, 132, 133, 134, 135];
    let of_ipxe = [1, 3, 6, 7, 12, 15, 17, 26, 43, 60, 66, 67, 119];
    let of_ipxe = [&of_ipxe[..], &vendors, &[175, 203]].concat();
    let of_edk2 = [1, 2, 3, 4, 5, 6, 12, 13, 15, 17, 18, 22, 23, 28, 40, 41, 42, 43, 50, 51, 54];
    let of_edk2 = [&of_edk2[..], &[58, 59, 60, 66, 67, 97], &vendors].concat();
    let (of_uboot, of_slof) = ([1, 3, 6, 12, 17], [1, 3, 6, 66, 67, 93]);

    let ipxe = [&pxe(0, &of_ipxe)[..], &[77, 4], b"iPXE"].concat();
    let menu = "http://192.168.77.1/menu.ipxe";
    assert_eq!(discover(&ipxe), told(menu, "192.168.77.1", menu));
    // Among other classes (RFC 3004 §4).
    let classes = [&pxe(7, &of_ipxe)[..], &[77, 9, 3], b"lab", &[4], b"iPXE"].concat();
    assert_eq!(discover(&classes).1, menu);
    let other = [&pxe(7, &of_ipxe)[..], &[77, 5], b"iPXE2"].concat();
    assert_eq!(discover(&other).1, "ipxe.efi");

    assert_eq!(discover(&pxe(0, &of_ipxe)).1, "undionly.kpxe");
    assert_eq!(discover(&pxe(7, &of_edk2)), told("ipxe.efi", "192.168.77.1", "ipxe.efi"));
    assert_eq!(discover(&pxe(11, &of_edk2)).1, "vmlinuz");
    let uboot = [&[93, 2, 0, 22, 55, 5], &of_uboot[..]].concat();
    assert_eq!(discover(&uboot), told("u-boot.scr", "", ""));
    let slof = [&[55, 6], &of_slof[..]].concat();
    assert_eq!(discover(&slof), told("vmlinuz", "192.168.77.1", "vmlinuz"));
    // A system that boots from its disk sees nothing but the header.
    assert_eq!(discover(&[55, 3, 1, 3, 6]), told("vmlinuz", "", ""));

    // SLOF and U-Boot read the answer to their request.
    let mut server = server();
    let address = lease(&mut server, "web0", MAC, 0).unwrap();
    let request = [&[50, 4], &address.octets()[..], &slof].concat();
    let file = booted(&mut server, MessageType::Request, &request);
    assert_eq!(file, told("vmlinuz", "192.168.77.1", "vmlinuz"));
}

#[test]
fn without_network_boot_an_answer_names_no_server_and_no_file() {
    let none = (Ipv4Addr::UNSPECIFIED, String::new(), String::new(), String::new());
    let asks = pxe(0, &[66, 67]);
    assert_eq!(booted(&mut server(), MessageType::Discover, &asks), none);
    // Firmware of an architecture without a file learns the server alone.
    let mut server = boot_server();
    server.settings.boot.others = None;
    let (siaddr, file, _, option) = booted(&mut server, MessageType::Discover, &pxe(11, &[66, 67]));
    assert_eq!((siaddr, file.as_str(), option.as_str()), (ip("192.168.77.1"), "", ""));
}

#[test]
fn a_refused_client_is_not_told_what_to_boot() {
    let mut server = boot_server();
    let request = [&[50, 4, 10, 0, 0, 5][..], &pxe(0, &[66, 67])].concat();
    let (done, nak) =
        server.take(&asker("web0", MAC), &with_options(MessageType::Request, &request), 0);
    let nak = Message::decode(&mut Decoder::new(&nak.unwrap().bytes)).unwrap();
    assert_eq!((done, nak.siaddr(), nak.fname()), (Done::Refused, Ipv4Addr::UNSPECIFIED, None));
}

#[test]
fn the_longest_file_has_its_zero_byte() {
    let mut server = boot_server();
    server.settings.boot.others = Some("f".repeat(BOOT_FILE_LEN_MAX));
    let (_, file, _, option) = booted(&mut server, MessageType::Discover, &[55, 1, 67]);
    assert_eq!((file.len(), option), (BOOT_FILE_LEN_MAX, file));
}

/// One action of a guest.
#[derive(Clone, Debug)]
struct Move {
    vif: usize,
    mac: u8,
    id: Option<u8>,
    kind: MessageType,
    address: u8,
    asks: bool,
    has: bool,
    names_weir: Option<bool>,
    /// Seconds that pass before the action.
    later: u32,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let kind = prop::sample::select(vec![
        MessageType::Discover,
        MessageType::Request,
        MessageType::Request,
        MessageType::Decline,
        MessageType::Release,
        MessageType::Inform,
    ]);
    let one = (
        (0..4_usize, 0..3_u8, prop::option::of(0..3_u8), kind),
        (98..112_u8, any::<bool>(), any::<bool>(), prop::option::of(any::<bool>())),
        prop::sample::select(vec![0, 1, 30, 100, 400, 4000]),
    );
    let one = one.prop_map(|((vif, mac, id, kind), (address, asks, has, names_weir), later)| {
        Move { vif, mac, id, kind, address, asks, has, names_weir, later }
    });
    prop::collection::vec(one, 1..120)
}

const VIFS: [&str; 4] = ["web0", "web1", "db0", "rogue"];

#[test]
fn options_that_are_not_listened_to_may_be_anything() {
    let request = message(MessageType::Discover, MAC, []).to_vec().unwrap();
    for code in 1..255_u8 {
        for len in [0, 1, 3, 4, 5, 255_u8] {
            let mut server = server();
            let mut bytes = request.clone();
            bytes.pop();
            bytes.extend([code, len]);
            bytes.extend(vec![0xff; usize::from(len)]);
            bytes.push(END);
            let (done, _) = server.take(&asker("web0", MAC), &bytes, 0);
            assert_eq!(done, Done::Offered, "{code}, {len} bytes");
        }
    }
    // An option that is longer than the message is ignored, and the first of two equal options counts.
    let mut server = server();
    let mut cut = request.clone();
    cut.pop();
    cut.extend([12, 200, 1, 2, 3]);
    assert_eq!(server.take(&asker("web0", MAC), &cut, 0), (Done::Ignored, None));
    let mut twice =
        message(MessageType::Request, MAC, [asked(ip("192.168.77.150"))]).to_vec().unwrap();
    twice.pop();
    twice.extend([50, 4, 192, 168, 77, 151, END]);
    let (done, reply) = server.take(&asker("web0", MAC), &twice, 0);
    let given = Message::decode(&mut Decoder::new(&reply.unwrap().bytes)).unwrap().yiaddr();
    assert_eq!((done, given), (Done::Given, ip("192.168.77.150")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The model knows only the answers that clients got, and nothing of the server's tables.
    #[test]
    fn no_two_interfaces_have_an_address_at_a_time(moves in moves()) {
        let mut server = Dhcp::new(settings("192.168.77.100"..="192.168.77.107"), Leases::default());
        server.set_vifs(VIFS.map(|vif| (vif.to_owned(), None)));
        let mut told: BTreeMap<Ipv4Addr, (usize, u32)> = BTreeMap::new();
        let mut now_secs = 0;
        for it in moves {
            now_secs += it.later;
            let mac = Mac([0x52, 0x54, 0, it.vif as u8, 0, it.mac]);
            let address = Ipv4Addr::new(192, 168, 77, it.address);
            let options = [
                it.asks.then_some(asked(address)),
                it.names_weir.map(|weir| match weir {
                    true => to_weir(),
                    false => DhcpOption::ServerIdentifier(ip("192.168.77.3")),
                }),
                it.id.map(|id| DhcpOption::ClientIdentifier(vec![id])),
            ];
            let mut message = message(it.kind, mac, options.into_iter().flatten());
            if it.has {
                message.set_ciaddr(address);
            }
            let asker = asker(VIFS[it.vif], mac);
            let (done, reply) = say(&mut server, &asker, &message, now_secs);
            prop_assert_eq!(matches!(done, Done::Offered | Done::Given | Done::Informed | Done::Refused), reply.is_some());
            match done {
                Done::Given => {
                    let given = reply.unwrap().0.yiaddr();
                    let fixed = given == ip("192.168.77.10") && VIFS[it.vif] == "db0";
                    prop_assert!(fixed || server.settings.range.contains(&given), "{given}");
                    if let Some((vif, until_secs)) = told.get(&given) {
                        prop_assert!(*vif == it.vif || *until_secs <= now_secs, "{given} is another's");
                    }
                    let lease = server.leases.get(given).unwrap();
                    told.insert(given, (it.vif, lease.until_secs));
                }
                Done::Released => {
                    let gone = told.remove(&message.ciaddr());
                    prop_assert_eq!(gone.map(|told| told.0), Some(it.vif));
                }
                Done::Declined => {
                    // An address that was only offered can be declined, too.
                    let gone = told.remove(&address).filter(|(_, until_secs)| *until_secs > now_secs);
                    prop_assert!(gone.is_none_or(|told| told.0 == it.vif));
                }
                _ => {}
            }
            for vif in VIFS {
                prop_assert!(server.leases.held_by(vif, now_secs) <= LEASES_PER_VIF_MAX);
            }
        }
        // After all these actions, each interface without an address gets one.
        for (index, vif) in VIFS.into_iter().enumerate() {
            if server.leases.held_by(vif, now_secs) == 0 {
                prop_assert!(lease(&mut server, vif, Mac([2, 0, 0, 0, 0, index as u8]), now_secs).is_some(), "{}", vif);
            }
        }
    }

    /// A separate client reads the routes, and uses them as the kernel would.
    #[test]
    fn routes_are_those_of_the_settings_whatever_their_length(
        all in prop::collection::vec((any::<u32>(), 1..=32_u8, any::<u32>()), 0..=DHCP_ROUTES_MAX),
        router in prop::option::of(any::<u32>()),
    ) {
        let all = all.into_iter().map(|(bits, len, gateway)| {
            (Ipv4Net::new(bits.into(), len).unwrap().trunc(), Ipv4Addr::from(gateway))
        });
        let all: Vec<_> = all.collect();
        let mut server = server();
        server.settings.routes = all.clone();
        server.settings.router = router.map(Ipv4Addr::from);
        let told = routes(&mut server, &[55, 1, 121]);
        prop_assert_eq!(told.is_some(), !all.is_empty());
        let told = told.unwrap_or_default();
        let (mut rest, mut heard) = (&told[..], Vec::new());
        while let [len, after @ ..] = rest {
            let (prefix, after) = after.split_at(usize::from(len.div_ceil(8)));
            let (gateway, after) = after.split_at(4);
            let mut octets = [0; 4];
            octets[..prefix.len()].copy_from_slice(prefix);
            let gateway: [u8; 4] = gateway.try_into().unwrap();
            heard.push((Ipv4Net::new(octets.into(), *len).unwrap(), Ipv4Addr::from(gateway)));
            rest = after;
        }
        let default = server.settings.router.map(|router| (Ipv4Net::default(), router));
        let expected = all.iter().copied().chain(default.filter(|_| !all.is_empty()));
        prop_assert_eq!(heard, expected.collect::<Vec<_>>());
    }

    #[test]
    fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..600), at in 236..400_usize) {
        let mut server = boot_server();
        let _ = server.take(&asker("web0", MAC), &bytes, 0);
        // The same bytes as options of a sound message.
        let mut message = message(MessageType::Discover, MAC, []).to_vec().unwrap();
        message.resize(at.max(240), 0);
        message.extend(&bytes);
        let _ = server.take(&asker("web0", MAC), &message, 0);
    }
}
