//! DHCPv6 (RFC 8415): settings for clients that make their addresses of the advertised prefixes (§6.1), and addresses
//! where these are managed (§6.2).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::Ipv6Addr;

use dhcproto::v6::{
    DhcpOption, DhcpOptions, IAAddr, IANA, Message, MessageType, Status, StatusCode,
};
use dhcproto::{Encodable, Name};
use ipnet::Ipv6Net;
use weir_limits::{DECLINED_SECS, LEASES_PER_VIF_MAX, OFFER_SECS, RA_DNS_SECS};
use weir_wire::{Mac, Ports};

use crate::advert::RaSettings;
use crate::dhcp::{Asker, Done};
use crate::leases::{Client, Hold, Lease, Leases};

/// Ports of DHCPv6: a client's, and a server's (RFC 8415 §7.2).
pub(crate) const PORTS: Ports = Ports { src: 546, dst: 547 };
/// All relays and servers of a link (RFC 8415 §7.1).
pub(crate) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// Messages of clients (RFC 8415 §7.3).
const SOLICIT: u8 = 1;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION_REQUEST: u8 = 11;
/// Options (RFC 8415 §21, RFC 3646).
const CLIENT: u16 = 1;
const SERVER: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const WANTED: u16 = 6;
const RAPID_COMMIT: u16 = 14;
/// Options by which a client asks for temporary addresses or prefixes, which weir does not give.
const OTHER_IAS: [u16; 2] = [4, 25];
const DNS: u16 = 23;
const DOMAINS: u16 = 24;
const REFRESH: u16 = 32;
/// The longest identifier (RFC 8415 §11.1).
const DUID_LEN_MAX: usize = 130;
/// The number of addresses that are tried for a client. A subnet is so large that other clients
/// never have all of them.
const TRIES: u8 = 8;

/// True if weir answers such a message, by the kind of the one in the datagram at `at` of a frame.
pub(crate) fn is_answered(told: Option<&RaSettings>, head: &[u8], at: usize) -> bool {
    told.is_some_and(|told| told.managed) || head.get(at + 8) == Some(&INFORMATION_REQUEST)
}

/// The parts of a client's message that weir reads.
#[derive(Default)]
struct Asked<'m> {
    kind: u8,
    transaction: [u8; 3],
    client: Option<&'m [u8]>,
    server: Option<&'m [u8]>,
    wanted: Option<&'m [u8]>,
    rapid: bool,
    /// The client's identity associations: the number of each, and the addresses that the client names.
    ias: Vec<(u32, Vec<Ipv6Addr>)>,
    has_other_ias: bool,
}

impl<'m> Asked<'m> {
    fn read(message: &'m [u8]) -> Option<Self> {
        let (&[kind, a, b, c], mut rest) = message.split_first_chunk()?;
        let mut asked = Self { kind, transaction: [a, b, c], ..Self::default() };
        while !rest.is_empty() {
            let (code, value);
            (code, value, rest) = option(rest)?;
            match code {
                CLIENT if value.len() > DUID_LEN_MAX => return None,
                CLIENT => asked.client = Some(value),
                SERVER => asked.server = Some(value),
                WANTED => asked.wanted = Some(value),
                RAPID_COMMIT => asked.rapid = true,
                // An interface has no more addresses, and the search for each takes a while.
                IA_NA if asked.ias.len() == LEASES_PER_VIF_MAX => return None,
                IA_NA => {
                    // The number, and two times that a client leaves to the server.
                    let (&[a, b, c, d, ..], mut within) = value.split_first_chunk::<12>()?;
                    let mut addresses = Vec::new();
                    while !within.is_empty() {
                        let (code, value);
                        (code, value, within) = option(within)?;
                        if code == IA_ADDRESS {
                            addresses.push(Ipv6Addr::from(*value.first_chunk::<16>()?));
                        }
                    }
                    asked.ias.push((u32::from_be_bytes([a, b, c, d]), addresses));
                }
                code => asked.has_other_ias |= OTHER_IAS.contains(&code),
            }
        }
        Some(asked)
    }

    /// An answer with the options that every answer has.
    fn answer(&self, kind: MessageType, own: Mac) -> Message {
        let mut answer = Message::new_with_id(kind, self.transaction);
        answer.opts_mut().insert(DhcpOption::ServerId(identifier(own).into()));
        if let Some(client) = self.client {
            answer.opts_mut().insert(DhcpOption::ClientId(client.into()));
        }
        answer
    }

    /// True if the client asks for the option. A client without a list of options gets all of them.
    fn wants(&self, code: u16) -> bool {
        let is_it = |wanted: &[u8]| wanted == code.to_be_bytes();
        self.wanted.is_none_or(|it| it.chunks_exact(2).any(is_it))
    }

    /// The answer to a client that asks for settings only.
    fn inform(&self, own: Mac, settings: &RaSettings) -> Heard {
        let is_for_weir = self.server.is_none_or(|server| server == identifier(own));
        let asks_for_more = self.has_other_ias || !self.ias.is_empty();
        // Such a message must not have such options (RFC 8415 §16.12).
        if self.kind != INFORMATION_REQUEST || !is_for_weir || asks_for_more {
            return IGNORED;
        }
        let mut reply = self.answer(MessageType::Reply, own);
        self.tell(settings, reply.opts_mut());
        if self.wants(REFRESH) {
            reply.opts_mut().insert(DhcpOption::InformationRefreshTime(RA_DNS_SECS));
        }
        (Done::Informed, reply.to_vec().ok())
    }

    fn tell(&self, settings: &RaSettings, options: &mut DhcpOptions) {
        if self.wants(DNS) && !settings.dns.is_empty() {
            options.insert(DhcpOption::DomainNameServers(settings.dns.clone()));
        }
        if self.wants(DOMAINS)
            && let Some(domain) = &settings.domain
            && let Ok(mut name) = Name::from_ascii(domain)
        {
            name.set_fqdn(true);
            options.insert(DhcpOption::DomainSearchList(vec![name]));
        }
    }
}

/// The result of a client's message, and weir's answer.
type Heard = (Done, Option<Vec<u8>>);

const IGNORED: Heard = (Done::Ignored, None);

/// Takes the message of a client that has addresses and asks for settings.
pub(crate) fn inform(own: Mac, settings: &RaSettings, message: &[u8]) -> Heard {
    Asked::read(message).map_or(IGNORED, |asked| asked.inform(own, settings))
}

/// The settings of guests that get addresses of IPv6.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dhcp6Settings {
    /// weir's own address, and the subnet.
    pub own: Ipv6Net,
    /// The lease time (s).
    pub lease_secs: u32,
    /// Fixed addresses, by interface.
    pub fixed: BTreeMap<String, Ipv6Addr>,
}

/// The server of one network. The subnet has many more addresses than there are leases.
#[derive(Debug)]
pub(crate) struct Dhcp6 {
    settings: Dhcp6Settings,
    leases: Leases<Ipv6Addr>,
    /// Interfaces of the network, with their configured addresses of the subnet.
    vifs: BTreeMap<String, Vec<Ipv6Addr>>,
    /// Configured addresses of all interfaces.
    reserved: BTreeSet<Ipv6Addr>,
    /// Addresses whose leases have changed since they were saved.
    pub(crate) changed: BTreeSet<Ipv6Addr>,
    /// The source of randomness: nobody can predict which address a client will get, and ask for it
    /// first.
    chance: RandomState,
}

impl Dhcp6 {
    /// Creates a server that starts with these leases.
    pub(crate) fn new(settings: Dhcp6Settings, leases: Leases<Ipv6Addr>) -> Self {
        let (vifs, reserved, changed, chance) = Default::default();
        let mut server = Self { settings, leases, vifs, reserved, changed, chance };
        server.set_vifs([]);
        server
    }

    /// The leases of the network.
    pub(crate) fn leases(&self) -> &Leases<Ipv6Addr> {
        &self.leases
    }

    /// Sets the interfaces of the network, each with the addresses of its own section. A fixed address of the network's
    /// section takes precedence.
    pub(crate) fn set_vifs(&mut self, vifs: impl IntoIterator<Item = (String, Vec<Ipv6Addr>)>) {
        let is_its =
            |it: &Ipv6Addr| self.settings.own.contains(it) && *it != self.settings.own.addr();
        let fixed = &self.settings.fixed;
        let own = |(vif, mut all): (String, Vec<Ipv6Addr>)| {
            all.retain(is_its);
            all.splice(..0, fixed.get(&vif).copied());
            (vif, all)
        };
        self.vifs = vifs.into_iter().map(own).collect();
        self.reserved = self.vifs.values().flatten().chain(fixed.values()).copied().collect();
    }

    /// The addresses that an interface holds now, and its fixed address.
    pub(crate) fn addresses_of(&self, vif: &str, now_secs: u32) -> BTreeSet<Ipv6Addr> {
        let fixed = self.settings.fixed.get(vif).copied();
        self.leases.bound_of(vif, now_secs).chain(fixed).collect()
    }

    /// The interface that holds an address now, or for which the address is fixed.
    pub(crate) fn vif_of(&self, address: Ipv6Addr, now_secs: u32) -> Option<&str> {
        let fixed = || self.settings.fixed.iter().find(|(_, fixed)| **fixed == address);
        let of_lease = self.leases.vif_of(address, now_secs);
        of_lease.or_else(|| fixed().map(|(vif, _)| vif.as_str()))
    }

    /// Takes a client's message. weir's MAC address is `own`.
    pub(crate) fn take(
        &mut self,
        asker: &Asker<'_>,
        (own, told): (Mac, &RaSettings),
        message: &[u8],
        now_secs: u32,
    ) -> Heard {
        let Some(asked) = Asked::read(message) else { return IGNORED };
        if asked.kind == INFORMATION_REQUEST {
            return asked.inform(own, told);
        }
        // RFC 8415 §16: a client names the server that it means, unless it means any.
        let is_for_weir = match asked.kind {
            SOLICIT | CONFIRM | REBIND => asked.server.is_none(),
            REQUEST | RENEW | RELEASE | DECLINE => asked.server == Some(&identifier(own)),
            _ => false,
        };
        let Some(duid) = asked.client.filter(|_| is_for_weir && !asked.ias.is_empty()) else {
            return IGNORED;
        };
        let client = |ia: u32| {
            let id = Some([duid, &ia.to_be_bytes()].concat());
            Client { vif: asker.vif.to_owned(), mac: asker.mac, id }
        };
        let is_offer = asked.kind == SOLICIT && !asked.rapid;
        let kind = if is_offer { MessageType::Advertise } else { MessageType::Reply };
        let mut reply = asked.answer(kind, own);
        let status =
            |status, msg: &str| DhcpOption::StatusCode(StatusCode { status, msg: msg.into() });
        let named = || asked.ias.iter().flat_map(|(ia, all)| all.iter().map(|it| (*ia, *it)));
        let done = match asked.kind {
            CONFIRM if named().next().is_none() => return IGNORED,
            CONFIRM => {
                let is_near = named().all(|(_, it)| self.settings.own.contains(&it));
                let (code, said, done) = match is_near {
                    true => (Status::Success, "on this link", Done::Informed),
                    false => (Status::NotOnLink, "of another link", Done::Refused),
                };
                reply.opts_mut().insert(status(code, said));
                done
            }
            RELEASE | DECLINE => {
                let is_declined = asked.kind == DECLINE;
                for (ia, address) in named() {
                    self.give_back(address, &client(ia), is_declined, now_secs);
                }
                reply.opts_mut().insert(status(Status::Success, "thank you"));
                if is_declined { Done::Declined } else { Done::Released }
            }
            _ => {
                let hold = if is_offer { Hold::Offered } else { Hold::Bound };
                let mut has_any = false;
                for (ia, named) in &asked.ias {
                    let given = self.give(&client(*ia), named, hold, now_secs);
                    has_any |= given.is_some();
                    let mut within = DhcpOptions::new();
                    let secs = self.settings.lease_secs;
                    // An address that the client names but does not have is taken back (RFC 8415
                    // §18.3.4).
                    let gone = named.iter().filter(|it| Some(**it) != given && !is_offer);
                    let all = given.map(|it| (it, secs)).into_iter().chain(gone.map(|it| (*it, 0)));
                    for (addr, life) in all {
                        let (preferred_life, valid_life, opts) = (life, life, DhcpOptions::new());
                        let address = IAAddr { addr, preferred_life, valid_life, opts };
                        within.insert(DhcpOption::IAAddr(address));
                    }
                    if given.is_none() {
                        within.insert(status(Status::NoAddrsAvail, "no address is left"));
                    }
                    let ia = IANA { id: *ia, t1: secs / 2, t2: secs / 5 * 4, opts: within };
                    reply.opts_mut().insert(DhcpOption::IANA(ia));
                }
                if asked.kind == SOLICIT && asked.rapid {
                    reply.opts_mut().insert(DhcpOption::RapidCommit);
                }
                asked.tell(told, reply.opts_mut());
                match (has_any, is_offer) {
                    (false, _) => Done::NoAddress,
                    (true, true) => Done::Offered,
                    (true, false) => Done::Given,
                }
            }
        };
        (done, reply.to_vec().ok())
    }

    /// Gives a client its address, or holds it for the client.
    fn give(
        &mut self,
        client: &Client,
        named: &[Ipv6Addr],
        hold: Hold,
        now_secs: u32,
    ) -> Option<Ipv6Addr> {
        let address = self.choose(client, named, now_secs)?;
        let secs = if hold == Hold::Offered { OFFER_SECS } else { self.settings.lease_secs };
        let until_secs = now_secs.saturating_add(secs);
        let before = self.leases.get(address);
        let keeps = |it: &Lease| {
            // An address that the client has stays bound while it asks anew, and a second renewal changes nothing.
            let is_bound = it.is_bound(now_secs) && it.client.is(client);
            is_bound && (hold == Hold::Offered || it.until_secs == until_secs)
        };
        if !before.is_some_and(keeps) {
            let lease = Lease { client: client.clone(), hold, until_secs };
            self.leases.put(address, lease, now_secs);
            if hold == Hold::Bound {
                self.changed.insert(address);
            }
        }
        Some(address)
    }

    /// The configured address of the interface. Without one, the first of these that is free: the client's present or last
    /// address, an address that the client names, any other address.
    fn choose(&self, client: &Client, named: &[Ipv6Addr], now_secs: u32) -> Option<Ipv6Addr> {
        if let Some(fixed) = self.vifs.get(&client.vif).and_then(|all| all.first()) {
            // Another interface keeps what it was given before until its lease ends.
            let is_others = |it: &Lease| {
                it.holds(now_secs) && (it.hold == Hold::Declined || it.client.vif != client.vif)
            };
            return Some(*fixed).filter(|fixed| !self.leases.get(*fixed).is_some_and(is_others));
        }
        let had = self.leases.of(client);
        let has = had.is_some_and(|(_, lease)| lease.holds(now_secs));
        if !has && !self.leases.have_room_for(&client.vif, self.vifs.keys(), || u64::MAX, now_secs)
        {
            return None;
        }
        let subnet = self.settings.own.trunc();
        let made = |n: u8| {
            let hash = self.chance.hash_one((&client.vif, client.mac.0, &client.id, n));
            let station = u128::from(hash) & subnet.hostmask().to_bits();
            Ipv6Addr::from_bits(subnet.network().to_bits() | station)
        };
        let is_for = |it: &Ipv6Addr| {
            subnet.contains(it)
                && ![subnet.network(), self.settings.own.addr()].contains(it)
                && !self.reserved.contains(it)
                && self.leases.is_free_for(*it, client, now_secs)
        };
        let known = had.map(|(address, _)| address).into_iter().chain(named.iter().copied());
        known.chain((0..TRIES).map(made)).find(is_for)
    }

    /// Ends a client's lease. A `declined` address counts as the interface's for a while, as one of IPv4 does.
    fn give_back(&mut self, address: Ipv6Addr, client: &Client, declined: bool, now_secs: u32) {
        let is_its =
            |it: &Lease| it.client.is(client) && it.holds(now_secs) && it.hold != Hold::Declined;
        if !self.leases.get(address).is_some_and(is_its) {
            return;
        }
        self.leases.end(address, now_secs);
        if declined {
            let until_secs = now_secs.saturating_add(DECLINED_SECS);
            let lease = Lease { client: client.clone(), hold: Hold::Declined, until_secs };
            self.leases.put(address, lease, now_secs);
        }
        self.changed.insert(address);
    }
}

/// The first option, and the bytes after it; `None` if the option is not complete.
fn option(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (&[a, b, c, d], rest) = bytes.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(u16::from_be_bytes([c, d]).into())?;
    Some((u16::from_be_bytes([a, b]), value, rest))
}

/// weir's identifier: a link-layer address of Ethernet (RFC 8415 §11.4).
fn identifier(Mac([a, b, c, d, e, f]): Mac) -> [u8; 10] {
    [0, 3, 0, 1, a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use dhcproto::v6::{ORO, OptionCode};
    use dhcproto::{Decodable, Decoder};
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
    const CLIENT_ID: [u8; 14] = [0, 1, 0, 1, 9, 8, 7, 6, 2, 0, 0, 0, 0, 1];

    fn settings() -> RaSettings {
        RaSettings {
            prefixes: vec!["fd77::/64".parse().unwrap()],
            dns: vec!["fd77::1".parse().unwrap()],
            domain: Some("lab.internal".into()),
            managed: false,
            router_secs: 0,
        }
    }

    fn request(options: impl IntoIterator<Item = DhcpOption>) -> Vec<u8> {
        let mut message = Message::new_with_id(MessageType::InformationRequest, [7, 8, 9]);
        message.opts_mut().insert(DhcpOption::ClientId(CLIENT_ID.into()));
        for option in options {
            message.opts_mut().insert(option);
        }
        message.to_vec().unwrap()
    }

    fn wanted(codes: &[OptionCode]) -> DhcpOption {
        DhcpOption::ORO(ORO { opts: codes.to_vec() })
    }

    fn answer(message: &[u8]) -> Option<Message> {
        let bytes = inform(OWN, &settings(), message).1?;
        Some(Message::decode(&mut Decoder::new(&bytes)).unwrap())
    }

    #[test]
    fn rfc_8415_18_3_6_a_client_gets_the_settings_that_it_asks_for() {
        let codes =
            [OptionCode::DomainNameServers, OptionCode::DomainSearchList, OptionCode::SntpServers];
        let got = answer(&request([wanted(&codes)])).unwrap();
        assert_eq!((got.msg_type(), got.xid()), (MessageType::Reply, [7, 8, 9]));
        let name = Name::from_ascii("lab.internal.").unwrap();
        let all = [
            DhcpOption::ClientId(CLIENT_ID.into()),
            DhcpOption::ServerId(identifier(OWN).into()),
            DhcpOption::DomainNameServers(settings().dns),
            DhcpOption::DomainSearchList(vec![name]),
        ];
        assert_eq!(got.opts().iter().cloned().collect::<Vec<_>>(), all);

        let got = answer(&request([wanted(&[OptionCode::DomainNameServers])])).unwrap();
        assert_eq!(got.opts().get(OptionCode::DomainSearchList), None);
        let got = answer(&request([])).unwrap();
        assert!(got.opts().get(OptionCode::DomainSearchList).is_some(), "it has not said");
        let refresh = [&[0, 32, 0, 4][..], &RA_DNS_SECS.to_be_bytes()].concat();
        let got = inform(OWN, &settings(), &request([])).1.unwrap();
        assert!(got.windows(refresh.len()).any(|it| it == refresh), "{got:x?}");
    }

    #[test]
    fn rfc_8415_16_12_requests_for_others_and_for_addresses_have_no_answer() {
        let mine = DhcpOption::ServerId(identifier(OWN).into());
        assert!(answer(&request([mine])).is_some());
        let anothers = DhcpOption::ServerId(identifier(Mac([9; 6])).into());
        assert_eq!(answer(&request([anothers])), None);
        let address = DhcpOption::IANA(IANA { id: 1, t1: 0, t2: 0, opts: Default::default() });
        assert_eq!(answer(&request([address])), None);
        let long = DhcpOption::ClientId(vec![7; DUID_LEN_MAX + 1]);
        assert_eq!(answer(&request([long])), None);
        let solicit = Message::new(MessageType::Solicit).to_vec().unwrap();
        assert_eq!(answer(&solicit), None);
        let whole = request([]);
        (5..whole.len()).for_each(|cut| assert_eq!(answer(&whole[..cut]), None, "{cut} bytes"));
    }

    const IA: u32 = 7;

    fn server() -> Dhcp6 {
        let settings = Dhcp6Settings {
            own: "fd77::1/64".parse().unwrap(),
            lease_secs: 3600,
            fixed: BTreeMap::new(),
        };
        let mut server = Dhcp6::new(settings, Leases::default());
        let fixed = vec!["fd77::10".parse().unwrap()];
        server.set_vifs(
            [("web0", vec![]), ("db0", fixed), ("rogue", vec![])]
                .map(|(vif, it)| (vif.to_owned(), it)),
        );
        server
    }

    /// A client's message for the association `ia` with the addresses `named`.
    fn says(kind: MessageType, duid: u8, ia: u32, named: &[Ipv6Addr]) -> Message {
        let mut message = Message::new_with_id(kind, [1, 2, duid]);
        let mut opts = DhcpOptions::new();
        for addr in named {
            let opts_of = DhcpOptions::new();
            opts.insert(DhcpOption::IAAddr(IAAddr {
                addr: *addr,
                preferred_life: 0,
                valid_life: 0,
                opts: opts_of,
            }));
        }
        message.opts_mut().insert(DhcpOption::ClientId(vec![0, 3, duid]));
        message.opts_mut().insert(DhcpOption::IANA(IANA { id: ia, t1: 0, t2: 0, opts }));
        if !matches!(kind, MessageType::Solicit | MessageType::Rebind | MessageType::Confirm) {
            message.opts_mut().insert(DhcpOption::ServerId(identifier(OWN).into()));
        }
        message
    }

    /// weir's answer to a client of this interface: the outcome, the message, and addresses with
    /// their lifetimes.
    fn hears(
        server: &mut Dhcp6,
        vif: &str,
        message: &Message,
        now_secs: u32,
    ) -> (Done, Option<Message>, Vec<(Ipv6Addr, u32)>) {
        let asker = Asker { vif, mac: Mac([2, 0, 0, 0, 0, 1]), mtu: None };
        let bytes = message.to_vec().unwrap();
        let (done, reply) = server.take(&asker, (OWN, &settings()), &bytes, now_secs);
        let reply = reply.map(|it| Message::decode(&mut Decoder::new(&it)).unwrap());
        let mut given = Vec::new();
        for option in reply.iter().flat_map(|it| it.opts().iter()) {
            let DhcpOption::IANA(ia) = option else { continue };
            for option in ia.opts.iter() {
                if let DhcpOption::IAAddr(it) = option {
                    given.push((it.addr, it.valid_life));
                }
            }
        }
        (done, reply, given)
    }

    /// Asks for an address as a client does.
    fn lease(server: &mut Dhcp6, vif: &str, duid: u8, now_secs: u32) -> Option<Ipv6Addr> {
        let solicit = says(MessageType::Solicit, duid, IA, &[]);
        let (done, reply, given) = hears(server, vif, &solicit, now_secs);
        let [(offered, 3600)] = given[..] else {
            assert_eq!(done, Done::NoAddress);
            return None;
        };
        assert_eq!((done, reply.unwrap().msg_type()), (Done::Offered, MessageType::Advertise));
        let request = says(MessageType::Request, duid, IA, &[offered]);
        let (done, reply, given) = hears(server, vif, &request, now_secs);
        assert_eq!((done, reply.unwrap().msg_type()), (Done::Given, MessageType::Reply));
        assert_eq!(given, [(offered, 3600)]);
        Some(offered)
    }

    #[test]
    fn rfc_8415_18_3_a_client_has_its_address_until_it_gives_it_back() {
        let mut server = server();
        let address = lease(&mut server, "web0", 1, 0).unwrap();
        assert!(server.settings.own.contains(&address));
        assert_eq!(server.vif_of(address, 5), Some("web0"));
        assert_eq!(server.addresses_of("web0", 5), [address].into());
        // A renewal, sent to weir or to any server, leaves the address to the client, and takes
        // back addresses that are not the client's.
        let foreign: Ipv6Addr = "fd99::1".parse().unwrap();
        for kind in [MessageType::Renew, MessageType::Rebind] {
            let renew = says(kind, 1, IA, &[address, foreign]);
            let (done, _, mut given) = hears(&mut server, "web0", &renew, 1800);
            given.sort();
            assert_eq!((done, given), (Done::Given, vec![(address, 3600), (foreign, 0)]));
        }
        assert_eq!(server.vif_of(address, 5000), Some("web0"));
        for (named, done) in [(address, Done::Informed), (foreign, Done::Refused)] {
            let confirm = says(MessageType::Confirm, 1, IA, &[named]);
            assert_eq!(hears(&mut server, "web0", &confirm, 1800).0, done);
        }
        // Another guest's client of the same name has another address, and can give back none but its own.
        let other = lease(&mut server, "rogue", 1, 1800).unwrap();
        assert_ne!(other, address);
        for kind in [MessageType::Release, MessageType::Decline] {
            hears(&mut server, "rogue", &says(kind, 1, IA, &[address]), 1800);
            assert_eq!(server.vif_of(address, 1801), Some("web0"));
        }
        let named = says(MessageType::Solicit, 9, IA, &[address]);
        assert_ne!(hears(&mut server, "rogue", &named, 1800).2[0].0, address);
        hears(&mut server, "web0", &says(MessageType::Release, 1, IA, &[address]), 1800);
        assert_eq!(server.vif_of(address, 1801), None);
        assert_eq!(lease(&mut server, "web0", 1, 1900), Some(address), "it is remembered");
        hears(&mut server, "web0", &says(MessageType::Decline, 1, IA, &[address]), 1900);
        assert_ne!(lease(&mut server, "web0", 1, 1900), Some(address), "somebody else uses it");
    }

    #[test]
    fn a_lease_lasts_over_a_file_and_an_interface_has_its_configured_address() {
        let mut server = server();
        assert_eq!(lease(&mut server, "db0", 1, 0), Some("fd77::10".parse().unwrap()));
        assert_eq!(lease(&mut server, "db0", 2, 0), Some("fd77::10".parse().unwrap()));
        let wants = says(MessageType::Solicit, 1, IA, &["fd77::10".parse().unwrap()]);
        assert_ne!(
            hears(&mut server, "web0", &wants, 0).2[0].0,
            "fd77::10".parse::<Ipv6Addr>().unwrap()
        );
        let address = lease(&mut server, "web0", 1, 0).unwrap();
        let file = tempfile::tempfile().unwrap();
        let mut store = crate::Store::new(file.try_clone().unwrap());
        store.note(server.leases(), &server.changed, 10).unwrap();
        let leases = crate::Store::new(file).load::<Ipv6Addr>(10, 3600).unwrap();
        let again = Dhcp6::new(server.settings.clone(), leases);
        assert_eq!(again.vif_of(address, 20), Some("web0"));
    }

    #[test]
    fn an_address_that_the_network_fixes_is_its_interfaces_alone_once_no_other_has_it() {
        let mut before = server();
        let had = lease(&mut before, "web0", 1, 0).unwrap();
        let later: Ipv6Addr = "fd77::99".parse().unwrap();
        let fixed = [("rogue", had), ("later", later), ("db0", "fd77::11".parse().unwrap())];
        let fixed = fixed.map(|(vif, it)| (vif.to_owned(), it)).into();
        let settings = Dhcp6Settings { fixed, ..before.settings.clone() };
        let mut server = Dhcp6::new(settings, before.leases);
        let vifs = ["web0", "db0", "rogue"].map(|vif| (vif.to_owned(), Vec::new()));
        server.set_vifs(vifs);
        assert_eq!(server.vif_of(later, 0), Some("later"), "it need not exist yet");
        assert_eq!(server.addresses_of("db0", 0), ["fd77::11".parse().unwrap()].into());
        // The interface keeps the address until its lease ends. It then gets another one, and never
        // this one again.
        assert_eq!(lease(&mut server, "rogue", 2, 100), None);
        let renew = says(MessageType::Renew, 1, IA, &[had]);
        let (_, _, given) = hears(&mut server, "web0", &renew, 100);
        assert!(
            given.contains(&(had, 0)) && given.iter().any(|(it, secs)| *it != had && *secs > 0)
        );
        assert_eq!(lease(&mut server, "rogue", 2, 3_700), Some(had));
        for named in [had, later] {
            let wants = says(MessageType::Solicit, 7, IA, &[named]);
            assert_ne!(hears(&mut server, "web0", &wants, 3_700).2[0].0, named);
        }
        server.set_vifs(["rogue", "later"].map(|vif| (vif.to_owned(), Vec::new())));
        assert_eq!(lease(&mut server, "later", 3, 3_700), Some(later));
    }

    #[test]
    fn no_interface_has_more_addresses_than_it_may_and_each_has_one() {
        let mut server = server();
        let given =
            (0..=255).filter(|duid| lease(&mut server, "rogue", *duid, 0).is_some()).count();
        assert_eq!(given, LEASES_PER_VIF_MAX);
        assert!(lease(&mut server, "web0", 1, 0).is_some());
    }

    #[test]
    fn a_message_that_asks_for_more_addresses_than_there_can_be_is_not_answered() {
        let mut solicit = says(MessageType::Solicit, 1, 0, &[]);
        for (ias, done) in [(LEASES_PER_VIF_MAX, Done::Offered), (1, Done::Ignored)] {
            // The message has one association already.
            for ia in 1..=ias as u32 - u32::from(done == Done::Offered) {
                let opts = DhcpOptions::new();
                let id = 1_000 * ias as u32 + ia;
                solicit.opts_mut().insert(DhcpOption::IANA(IANA { id, t1: 0, t2: 0, opts }));
            }
            assert_eq!(hears(&mut server(), "web0", &solicit, 0).0, done, "{ias}");
        }
    }

    #[test]
    fn nobody_foresees_the_address_of_a_client() {
        let given = [(); 2].map(|()| lease(&mut server(), "web0", 1, 0).unwrap());
        assert_ne!(given[0], given[1], "another weir, or another network");
    }

    #[test]
    fn rfc_8415_18_3_1_a_client_in_a_hurry_has_its_address_at_once() {
        let mut server = server();
        let mut solicit = says(MessageType::Solicit, 1, IA, &[]);
        solicit.opts_mut().insert(DhcpOption::RapidCommit);
        let (done, reply, given) = hears(&mut server, "web0", &solicit, 0);
        let reply = reply.unwrap();
        assert_eq!((done, reply.msg_type(), given.len()), (Done::Given, MessageType::Reply, 1));
        assert!(reply.opts().get(OptionCode::RapidCommit).is_some());
        assert!(reply.opts().get(OptionCode::DomainNameServers).is_some());
        // The request is for another server, or for none where one has to be named.
        let mut request = says(MessageType::Request, 2, IA, &[]);
        request.opts_mut().remove(OptionCode::ServerId);
        assert_eq!(hears(&mut server, "web0", &request, 0).0, Done::Ignored);
        request.opts_mut().insert(DhcpOption::ServerId(vec![1, 2, 3]));
        assert_eq!(hears(&mut server, "web0", &request, 0).0, Done::Ignored);
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_answer_that_can_be_read_or_none(
            mut message in prop::collection::vec(any::<u8>(), 0..200),
            is_request: bool,
        ) {
            if let (true, Some(first)) = (is_request, message.first_mut()) {
                *first = INFORMATION_REQUEST;
            }
            let _ = answer(&message);
            let asker = Asker { vif: "web0", mac: Mac([2; 6]), mtu: None };
            server().take(&asker, (OWN, &settings()), &message, 0);
        }
    }
}
