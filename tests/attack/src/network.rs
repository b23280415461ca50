//! Guests of a network in which weir gives addresses and answers names.

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::{Duration, Instant},
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        ear::Ear,
        frame::{BROADCAST, End, Header, Mac, datagram, datagram6, frame},
        guest::Guest,
        harm,
    },
    measure::switch::{GIVEN, GREEN, RESOLVER, SECRET, way_out},
    random::Random,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        addresses_for_clients_that_are_not,
        "asks for addresses in the name of ever new clients, to have all there are"
    ),
    attack!(
        addresses_that_are_declined,
        "takes addresses, says that they are in use, and asks for others"
    ),
    attack!(
        servers_of_addresses_that_are_guests,
        "answers another guest's questions for addresses"
    ),
    attack!(routers_that_are_guests, "says that it is the router, by IPv6 and by ARP for weir"),
    attack!(messages_of_dhcp_that_lie, "sends DHCP whose options and lengths lie"),
    attack!(
        addresses_of_ipv6_for_clients_that_are_not,
        "asks for addresses of IPv6 in the name of ever new clients, several at once"
    ),
    attack!(
        addresses_of_ipv6_that_are_anothers,
        "gives back, declines and renews the address of another guest, in its name"
    ),
    attack!(messages_of_dhcp6_that_lie, "sends DHCPv6 whose options and lengths lie"),
    attack!(names_without_pause, "asks for names as fast as frames are taken"),
    attack!(
        names_that_are_long_and_loop,
        "asks for names of 255 bytes and more, of pointers in circles, and of a thousand questions"
    ),
    attack!(
        answers_that_are_forged,
        "sends answers for names to weir, in the resolver's name and to every port"
    ),
    attack!(
        names_that_nobody_answers,
        "asks for ever new names outside, which the resolver never answers"
    ),
    attack!(names_of_another_network, "asks for the names and addresses of another network"),
    attack!(
        names_for_programs_of_the_host,
        "asks at the host's own address, as a program of another user, faster than weir answers",
        as_another_user
    ),
];

const DHCP_MAGIC: [u8; 4] = [99, 130, 83, 99];
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;
const UDP: u8 = 17;
const A: u16 = 1;
const PTR: u16 = 12;

/// weir in the network.
fn weir(mac: Mac, port: u16) -> End {
    End { mac, ip: GREEN, port }
}

/// One of the addresses that weir gives.
fn given(which: u8) -> [u8; 4] {
    let [[a, b, c, first], [.., last]] = GIVEN;
    [a, b, c, first + which % (last - first + 1)]
}

/// The guest's end, with an address of the subnet that weir does not give.
fn own(number: u8, port: u16) -> End {
    let [a, b, c, _] = GREEN;
    End { mac: Guest::mac(number), ip: [a, b, c, number], port }
}

/// A message of a client to weir.
fn dhcp(client: Mac, xid: u32, kind: u8, options: &[u8]) -> Vec<u8> {
    let mut message = vec![1, 1, 6, 0];
    message.extend(xid.to_be_bytes());
    message.extend([0, 0, 0x80, 0]);
    message.extend([0; 16]);
    message.extend(client);
    message.resize(236, 0);
    message.extend(DHCP_MAGIC);
    message.extend([53, 1, kind]);
    message.extend(options);
    message.push(255);
    message
}

fn asked(from: Mac, message: &[u8]) -> Vec<u8> {
    let client = End { mac: from, ip: [0; 4], port: 68 };
    datagram(client, End { mac: BROADCAST, ip: [255; 4], port: 67 }, message)
}

/// The payload of a UDP datagram between these ports, if `got` is one.
fn payload(got: &[u8], from: u16, to: u16) -> Option<&[u8]> {
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    let is_udp = got.get(12..14) == Some(&[8, 0]) && got.get(23) == Some(&17);
    (is_udp && got.get(34..38) == Some(&ports)).then(|| got.get(42..)).flatten()
}

/// A question for a name.
fn question(id: u16, name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(63));
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

/// Two guests of the network: `good` keeps the rules.
struct Two {
    evil: Ear,
    good: Ear,
    /// weir's own address.
    station: Mac,
    id: u16,
}

impl Two {
    fn meet(field: &Field) -> Strike<Self> {
        let evil = Ear::attach(&field.socket("asker0"))?;
        let mut good = Ear::attach(&field.socket("asker1"))?;
        let station = Self::looks_for(&mut good, own(201, 0))?;
        Ok(Self { evil, good, station, id: 0 })
    }

    /// Asks for weir's own address.
    fn looks_for(good: &mut Ear, from: End) -> Strike<Mac> {
        let mut arp = frame(BROADCAST, from.mac, 0x0806, 14);
        arp.extend([0, 1, 8, 0, 6, 4, 0, 1]);
        arp.extend(from.mac);
        arp.extend(from.ip);
        arp.extend([0; 6]);
        arp.extend(GREEN);
        arp.resize(60, 0);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            good.say(&arp)?;
            std::thread::sleep(Duration::from_millis(5));
            let mut found = None;
            good.read(|got| {
                if got[12..14] == [8, 6] && got[20..22] == [0, 2] && got[28..32] == GREEN {
                    found = got[22..28].try_into().ok();
                }
            });
            if let Some(found) = found {
                return Ok(found);
            }
        }
        harm("weir does not say where it is")
    }

    /// The guest that keeps the rules asks for an address and is offered one.
    fn is_offered_an_address(&mut self, why: &str) -> Strike<[u8; 4]> {
        self.id = self.id.wrapping_add(1);
        let (mac, xid) = (Guest::mac(201), 0x6000_0000 | u32::from(self.id));
        let message = asked(mac, &dhcp(mac, xid, DISCOVER, &[]));
        let mut offered = None;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            self.good.say(&message)?;
            let wait = Instant::now() + Duration::from_millis(100);
            while Instant::now() < wait && offered.is_none() {
                self.good.read(|got| {
                    let offer = payload(got, 67, 68).filter(|it| it[4..8] == xid.to_be_bytes());
                    offered = offered.or(offer.and_then(|it| it[16..20].try_into().ok()));
                });
                std::thread::sleep(Duration::from_micros(200));
            }
            if let Some(offered) = offered {
                return Ok(offered);
            }
        }
        harm(format!("a guest is not offered an address {why}"))
    }

    /// The guest that keeps the rules asks for its own name, and is answered.
    fn is_answered(&mut self, why: &str) -> Strike {
        self.id = self.id.wrapping_add(1);
        let (id, from) = (self.id, own(201, 5353));
        let asks = question(id, "asker1.internal", A);
        let asks = datagram(from, weir(self.station, 53), &asks);
        let (mut answered, end) = (false, Instant::now() + PATIENCE);
        while !answered && Instant::now() < end {
            self.good.say(&asks)?;
            let wait = Instant::now() + Duration::from_millis(100);
            while Instant::now() < wait && !answered {
                self.good.read(|got| {
                    let answer = payload(got, 53, 5353);
                    answered |= answer.is_some_and(|it| it[..2] == id.to_be_bytes());
                });
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        if answered { Ok(()) } else { harm(format!("a guest's question for a name is lost {why}")) }
    }

    /// Sends each frame from the guest that keeps no rule, and reads what comes back.
    fn strikes(&mut self, frames: &[Vec<u8>]) -> Strike {
        for frame in frames {
            self.evil.say(frame)?;
        }
        self.evil.read(|_| ());
        Ok(())
    }
}

/// Longest time until weir answers: a guest's share is 100 frames a second, and a resolver has two seconds.
const PATIENCE: Duration = Duration::from_secs(3);

fn addresses_for_clients_that_are_not(field: &Field) -> Strike {
    let (mut two, mut random) = (Two::meet(field)?, Random::new());
    let mac = Guest::mac(200);
    loop {
        for _ in 0..64 {
            let [a, b, c, d, e, ..] = random.next().to_be_bytes();
            let client = [2, a, b, c, d, e];
            let id = [61, 7, 1, 2, a, b, c, d, e];
            let wants = [&id[..], &[50, 4], &given(e)].concat();
            let xid = u32::from_be_bytes([a, b, c, d]);
            let frames = [
                asked(mac, &dhcp(mac, xid, DISCOVER, &id)),
                asked(mac, &dhcp(mac, xid, REQUEST, &wants)),
                asked(client, &dhcp(client, xid, REQUEST, &wants)),
            ];
            two.strikes(&frames)?;
        }
        two.is_offered_an_address("while another one takes all")?;
        field.struck();
    }
}

fn addresses_that_are_declined(field: &Field) -> Strike {
    let (mut two, mut random) = (Two::meet(field)?, Random::new());
    let mac = Guest::mac(200);
    let offered = two.is_offered_an_address("before anything")?;
    loop {
        for _ in 0..32 {
            let [a, b, c, d, last, ..] = random.next().to_be_bytes();
            let xid = u32::from_be_bytes([a, b, c, d]);
            let server = [54, 4, GREEN[0], GREEN[1], GREEN[2], GREEN[3]];
            let of = |[a, b, c, d]: [u8; 4]| [&[50, 4, a, b, c, d], &server[..]].concat();
            let any = given(last);
            let frames = [
                asked(mac, &dhcp(mac, xid, DISCOVER, &[])),
                asked(mac, &dhcp(mac, xid, REQUEST, &of(any))),
                asked(mac, &dhcp(mac, xid, DECLINE, &of(any))),
                asked(mac, &dhcp(mac, xid, DECLINE, &of(offered))),
                asked(mac, &dhcp(Guest::mac(201), xid, DECLINE, &of(offered))),
            ];
            two.strikes(&frames)?;
        }
        let now = two.is_offered_an_address("while another one declines all")?;
        if now != offered {
            return harm(format!("another guest's words took {offered:?}: now {now:?} is offered"));
        }
        field.struck();
    }
}

/// None of `frames` may reach the guest that keeps the rules.
fn does_not_arrive(two: &mut Two, frames: &[Vec<u8>], why: &str) -> Strike {
    let last = frame(Guest::mac(201), Guest::mac(200), 0x88b5, 60);
    let Two { evil, good, .. } = two;
    good.must_not_hear(evil, frames, &last, why)
}

fn servers_of_addresses_that_are_guests(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let (evil, good) = (own(200, 67), End { ip: [255; 4], ..own(201, 68) });
    let mut xid = 0x7000_0000_u32;
    loop {
        xid += 1;
        let offers = [OFFER, 5, 6].map(|kind| {
            let mut message = dhcp(good.mac, xid, kind, &[54, 4, 10, 0, 0, 9, 3, 4, 10, 0, 0, 9]);
            message[0] = 2;
            message[16..20].copy_from_slice(&[10, 0, 0, 77]);
            message
        });
        let weirs = weir(two.station, 67);
        let frames: Vec<_> = offers
            .iter()
            .flat_map(|offer| {
                let unicast = End { ip: own(201, 68).ip, ..good };
                let all = End { mac: BROADCAST, ..good };
                let forged = End { mac: evil.mac, ..weirs };
                [(evil, good), (evil, unicast), (evil, all), (forged, good)]
                    .map(|(from, to)| datagram(from, to, offer))
            })
            .collect();
        does_not_arrive(&mut two, &frames, "a guest's answer of DHCP arrives")?;
        field.struck();
    }
}

fn routers_that_are_guests(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let (evil, good) = (own(200, 0), own(201, 0));
    let advert = |to: Mac| {
        let mut bytes = frame(to, evil.mac, 0x86dd, 14);
        bytes.extend([0x60, 0, 0, 0, 0, 16, 58, 255, 0xfe, 0x80]);
        bytes.resize(14 + 24, 7);
        bytes.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend([134, 0, 0, 0, 64, 0, 7, 8]);
        bytes.resize(70, 0);
        bytes
    };
    let claim = |operation: u8, to: Mac| {
        let mut arp = frame(to, evil.mac, 0x0806, 14);
        arp.extend([0, 1, 8, 0, 6, 4, 0, operation]);
        arp.extend(evil.mac);
        arp.extend(GREEN);
        arp.extend(good.mac);
        arp.extend(good.ip);
        arp.resize(60, 0);
        arp
    };
    let frames = [
        advert([0x33, 0x33, 0, 0, 0, 1]),
        advert(good.mac),
        claim(2, good.mac),
        claim(1, good.mac),
        claim(2, BROADCAST),
    ];
    loop {
        does_not_arrive(&mut two, &frames, "a guest that is the router, or weir, is heard")?;
        field.struck();
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn messages_of_dhcp_that_lie(field: &Field) -> Strike {
    let (mut two, mut random) = (Two::meet(field)?, Random::new());
    let mac = Guest::mac(200);
    loop {
        for _ in 0..32 {
            let xid = random.next() as u32;
            let mut message = dhcp(mac, xid, DISCOVER, &[61, 255, 1, 2, 3, 52, 1, 3, 82, 200]);
            for _ in 0..random.below(8) {
                let at = random.below(message.len() as u64) as usize;
                message[at] = random.next() as u8;
            }
            let cut = random.below(message.len() as u64) as usize;
            let long = dhcp(mac, xid, REQUEST, &[61, 200].repeat(300));
            let frames = [asked(mac, &message), asked(mac, &message[..cut]), asked(mac, &long)];
            two.strikes(&frames)?;
        }
        two.is_offered_an_address("beside messages that lie")?;
        field.struck();
    }
}

/// Messages of DHCPv6.
const SOLICIT6: u8 = 1;
const REQUEST6: u8 = 3;
const RENEW6: u8 = 5;
const REBIND6: u8 = 6;
const REPLY6: u8 = 7;
const RELEASE6: u8 = 8;
const DECLINE6: u8 = 9;

/// An option of DHCPv6.
fn option6(code: u8, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[0, code][..], &len, value].concat()
}

/// An option that asks for an address, or names one.
fn ia(number: u32, address: Option<[u8; 16]>) -> Vec<u8> {
    let within = address.map(|it| option6(5, &[&it[..], &[0; 8]].concat())).unwrap_or_default();
    option6(3, &[&number.to_be_bytes()[..], &[0; 8], &within].concat())
}

/// A client's message with its identifier.
fn dhcp6(kind: u8, xid: u16, duid: &[u8], options: &[u8]) -> Vec<u8> {
    let [high, low] = xid.to_be_bytes();
    [&[kind, 6, high, low][..], &option6(1, duid), options].concat()
}

fn asked6(from: Mac, message: &[u8]) -> Vec<u8> {
    let mut own = [0; 16];
    own[..2].copy_from_slice(&[0xfe, 0x80]);
    own[10..].copy_from_slice(&from);
    let mut all = [0; 16];
    (all[0], all[1], all[13], all[15]) = (0xff, 2, 1, 2);
    datagram6((from, own, 546), ([0x33, 0x33, 0, 1, 0, 2], all, 547), message)
}

/// The identifiers of the guest that keeps the rules, and of weir.
const GOOD_DUID: [u8; 4] = [0, 2, 7, 7];

fn server6(station: Mac) -> Vec<u8> {
    option6(2, &[&[0, 3, 0, 1][..], &station].concat())
}

impl Two {
    /// The guest that keeps the rules asks for an address of IPv6, and has it.
    fn has_an_address_of_ipv6(&mut self, why: &str) -> Strike<[u8; 16]> {
        self.id = self.id.wrapping_add(1);
        let options = [option6(14, &[]), ia(1, None)].concat();
        let message = dhcp6(SOLICIT6, self.id, &GOOD_DUID, &options);
        let (asks, id) = (asked6(Guest::mac(201), &message), self.id.to_be_bytes());
        let (mut given, end) = (None, Instant::now() + PATIENCE);
        while given.is_none() && Instant::now() < end {
            self.good.say(&asks)?;
            let wait = Instant::now() + Duration::from_millis(100);
            while Instant::now() < wait && given.is_none() {
                self.good.read(|got| given = given.or_else(|| given6(got, id)));
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        given.map_or_else(|| harm(format!("a guest has no address of IPv6 {why}")), Ok)
    }
}

/// The address in weir's reply of this number.
fn given6(got: &[u8], id: [u8; 2]) -> Option<[u8; 16]> {
    let is_its = got.get(12..14) == Some(&[0x86, 0xdd]) && got.get(20) == Some(&UDP);
    let is_its = is_its && got.get(54..58) == Some(&[2, 0x23, 2, 0x22]);
    let reply = got.get(62..).filter(|it| is_its && it.starts_with(&[REPLY6, 6, id[0], id[1]]))?;
    // The first address within the first IA: an option of 24 bytes.
    let at = reply.windows(4).position(|it| it == [0, 5, 0, 24])?;
    reply.get(at + 4..at + 20)?.try_into().ok()
}

fn addresses_of_ipv6_for_clients_that_are_not(field: &Field) -> Strike {
    let (mut two, mut random) = (Two::meet(field)?, Random::new());
    let mac = Guest::mac(200);
    let had = two.has_an_address_of_ipv6("before anything")?;
    loop {
        for _ in 0..64 {
            let (duid, xid) = (random.next().to_be_bytes(), random.next() as u16);
            let ias =
                |count| (0..count).flat_map(|number| ia(number, Some(had))).collect::<Vec<_>>();
            let rapid = [option6(14, &[]), ias(16)].concat();
            let frames = [
                asked6(mac, &dhcp6(SOLICIT6, xid, &duid, &ias(16))),
                asked6(mac, &dhcp6(SOLICIT6, xid, &duid, &rapid)),
                asked6(mac, &dhcp6(REQUEST6, xid, &duid, &[server6(two.station), ias(1)].concat())),
                asked6(mac, &dhcp6(SOLICIT6, xid, &duid, &ias(40))),
            ];
            two.strikes(&frames)?;
        }
        let now = two.has_an_address_of_ipv6("while another one takes all")?;
        if now != had {
            return harm(format!("another guest took {had:x?}: now it is {now:x?}"));
        }
        field.struck();
    }
}

fn addresses_of_ipv6_that_are_anothers(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let (evil, good) = (Guest::mac(200), Guest::mac(201));
    let had = two.has_an_address_of_ipv6("before anything")?;
    let mut xid = 0_u16;
    loop {
        for kind in [RELEASE6, DECLINE6, RENEW6, REBIND6, REQUEST6, SOLICIT6] {
            for number in [1, 2] {
                xid = xid.wrapping_add(1);
                let server = match kind {
                    REBIND6 | SOLICIT6 => Vec::new(),
                    _ => server6(two.station),
                };
                let options = [server, ia(number, Some(had))].concat();
                let message = dhcp6(kind, xid, &GOOD_DUID, &options);
                two.strikes(&[asked6(evil, &message), asked6(good, &message)])?;
            }
        }
        let now = two.has_an_address_of_ipv6("while another one gives it back")?;
        if now != had {
            return harm(format!("another guest's words took {had:x?}: now it is {now:x?}"));
        }
        field.struck();
    }
}

fn messages_of_dhcp6_that_lie(field: &Field) -> Strike {
    let (mut two, mut random) = (Two::meet(field)?, Random::new());
    let mac = Guest::mac(200);
    let had = two.has_an_address_of_ipv6("before anything")?;
    loop {
        for _ in 0..32 {
            let xid = random.next() as u16;
            let many: Vec<_> = (0..40).flat_map(|_| option6(5, &[7; 24])).collect();
            let deep = option6(3, &[&[0; 12][..], &many].concat());
            let mut message =
                dhcp6(SOLICIT6, xid, &[7; 130], &[deep.clone(), ia(9, None)].concat());
            for _ in 0..random.below(8) {
                let at = random.below(message.len() as u64) as usize;
                message[at] = random.next() as u8;
            }
            let cut = random.below(message.len() as u64) as usize;
            let frames = [
                asked6(mac, &message),
                asked6(mac, &message[..cut]),
                asked6(mac, &dhcp6(SOLICIT6, xid, &[7; 131], &ia(9, None))),
                asked6(
                    mac,
                    &dhcp6(REBIND6, xid, &[7; 2], &[&deep[..], &[0, 3, 0xff, 0xff]].concat()),
                ),
                asked6(mac, &[0, 3, 0, 0].repeat(300)),
            ];
            two.strikes(&frames)?;
        }
        let now = two.has_an_address_of_ipv6("beside messages that lie")?;
        if now != had {
            return harm(format!("messages that lie took {had:x?}: now it is {now:x?}"));
        }
        field.struck();
    }
}

fn names_without_pause(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let to = weir(two.station, 53);
    let mut id = 0_u16;
    let flood = |two: &mut Two, id: &mut u16| -> Strike {
        two.evil.guest.load(1, |_| {
            *id = id.wrapping_add(1);
            let asks = question(*id, &format!("n{id}.internal"), A);
            (Header::default(), datagram(own(200, *id | 1024), to, &asks))
        });
        let Two { evil, good, .. } = two;
        good.flooded_by(&evil.guest)
    };
    loop {
        flood(&mut two, &mut id)?;
        two.is_answered("to another guest's flood")?;
        two.is_offered_an_address("beside a flood of questions for names")?;
        field.struck();
    }
}

fn names_that_are_long_and_loop(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let (from, to) = (own(200, 4000), weir(two.station, 53));
    let head = |questions: u16| {
        let mut bytes = vec![0, 7, 1, 0];
        bytes.extend(questions.to_be_bytes());
        bytes.extend([0; 6]);
        bytes
    };
    let with = |questions: u16, rest: &[u8]| [&head(questions)[..], rest].concat();
    let label = |len: u8, times: usize| {
        let one = [&[len][..], &vec![b'a'; len.into()]].concat();
        [&one.repeat(times)[..], &[0, 0, 1, 0, 1]].concat()
    };
    let end = [0, 1, 0, 1];
    let messages = [
        with(1, &label(63, 4)),
        with(1, &label(63, 16)),
        with(1, &label(1, 127)),
        with(1, &label(1, 600)),
        with(1, &[&[0xc0, 12][..], &end].concat()),
        with(1, &[&[1, b'a', 0xc0, 12][..], &end].concat()),
        with(2, &[&[0xc0, 14, 0xc0, 12][..], &end].concat()),
        with(1, &[&[0xff, 0xff][..], &end].concat()),
        with(1, &[0xc0]),
        with(1, &[63, b'a']),
        with(1, &[0x40, 0, 0, 1, 0, 1]),
        with(u16::MAX, &[0, 0, 1, 0, 1].repeat(250)),
        with(0, &[]),
        with(1, &[&[0xc0, 16, 0, 255, 0xc0, 12][..], &end].concat()),
        [&[0, 7, 1, 0][..], &[0xff; 8]].concat(),
        head(1)[..11].to_vec(),
        [&question(9, &["a"; 120].join("."), PTR)[..], &[0, 0, 41, 0xff, 0xff, 0, 0, 0, 0, 0xff]]
            .concat(),
    ];
    let frames = messages.map(|message| datagram(from, to, &message));
    loop {
        let before = two.evil.guest.ring(0).used();
        two.strikes(&frames)?;
        std::thread::sleep(Duration::from_millis(20));
        // At most one answer for each, and of at most 1,232 bytes: no answer is larger for a sender
        // that asks in another's name.
        let answers = two.evil.guest.ring(0).used().wrapping_sub(before);
        if usize::from(answers) > 2 * frames.len() {
            return harm(format!("{answers} frames answer {}", frames.len()));
        }
        two.is_answered("beside names that are none")?;
        field.struck();
    }
}

fn answers_that_are_forged(field: &Field) -> Strike {
    let (mut two, mut random) = (Two::meet(field)?, Random::new());
    let mut number = 0_u32;
    loop {
        number += 1;
        let name = format!("victim{number}.example");
        let asks = question(77, &name, A);
        let good = datagram(own(201, 5354), weir(two.station, 53), &asks);
        two.good.say(&good)?;
        for _ in 0..64 {
            let mut answer = question(random.next() as u16, &name, A);
            answer[2..8].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1]);
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 6, 6, 6, 6]);
            let resolver = End { mac: Guest::mac(200), ip: RESOLVER, port: 53 };
            let port = 1024 | random.next() as u16;
            let frames = [
                datagram(resolver, weir(two.station, port), &answer),
                datagram(End { port: 4002, ..resolver }, weir(two.station, 53), &answer),
                datagram(own(200, 4002), weir(two.station, 53), &answer),
            ];
            for frame in &frames {
                two.evil.say(frame)?;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        let mut answered = false;
        two.evil.read(|got| answered |= payload(got, 53, 4002).is_some());
        if answered {
            return harm("weir answers an answer");
        }
        let mut forged = false;
        two.good.read(|got| {
            let answer = payload(got, 53, 5354);
            forged |= answer.is_some_and(|it| it[..2] == [0, 77] && it[6..8] != [0, 0]);
        });
        if forged {
            return harm("weir tells a guest what another guest has forged");
        }
        field.struck();
    }
}

fn names_that_nobody_answers(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let to = weir(two.station, 53);
    let mut number = 0_u32;
    loop {
        two.evil.guest.load(1, |slot| {
            number += 1;
            let asks = question(slot, &format!("n{number}.example"), A);
            (Header::default(), datagram(own(200, 2000 + slot), to, &asks))
        });
        let Two { evil, good, .. } = &mut two;
        good.flooded_by(&evil.guest)?;
        two.is_answered("while the resolver answers nobody")?;
        two.is_offered_an_address("while the resolver answers nobody")?;
        field.struck();
    }
}

fn names_of_another_network(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let to = weir(two.station, 53);
    let [a, b, c, d] = SECRET;
    let names = [
        ("secret.internal".to_owned(), A),
        ("SECRET.Internal".to_owned(), A),
        (format!("{d}.{c}.{b}.{a}.in-addr.arpa"), PTR),
        ("secret".to_owned(), A),
        ("secret.internal.internal".to_owned(), A),
        ("gateway.red.internal".to_owned(), A),
    ];
    let mut id = 0_u16;
    loop {
        for (name, kind) in &names {
            id = id.wrapping_add(1);
            two.evil.say(&datagram(own(200, 4001), to, &question(id, name, *kind)))?;
        }
        std::thread::sleep(Duration::from_millis(20));
        let mut told = None;
        two.evil.read(|got| {
            // An answer that has records.
            let answer = payload(got, 53, 4001).filter(|it| it[6..8] != [0, 0]);
            told = told.or(answer.map(|it| u16::from_be_bytes([it[0], it[1]])));
        });
        if let Some(told) = told {
            return harm(format!("another network's name is answered (question {told})"));
        }
        two.is_answered("beside questions for another network")?;
        field.struck();
    }
}

fn names_for_programs_of_the_host(field: &Field) -> Strike {
    let mut two = Two::meet(field)?;
    let (mut random, mut id) = (Random::new(), 0_u16);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    loop {
        for _ in 0..64 {
            id = id.wrapping_add(1);
            let mut asks = question(id, &format!("n{id}.internal"), A);
            let outside = question(id, &format!("n{id}.example"), A);
            let at = random.below(asks.len() as u64) as usize;
            socket.send_to(&outside, (way_out(field.dir()), 53))?;
            socket.send_to(&asks, (way_out(field.dir()), 53))?;
            asks[at] = random.next() as u8;
            socket.send_to(&asks, (way_out(field.dir()), 53))?;
        }
        two.is_answered("beside a flood of the host's programs")?;
        field.struck();
    }
}
