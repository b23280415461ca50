//! A guest in a network with multicast snooping, and others who want its groups.

use std::time::{Duration, Instant};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        ear::Ear,
        frame::{End, Header, UDP, framed, ipv4, udp},
        guest::Guest,
    },
    measure::switch::{TV_GUEST, TV_MEMBER, TV_ROUTER},
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        a_hundred_thousand_groups,
        "joins ever new multicast groups, to have another guest lose its own"
    ),
    attack!(
        forged_queries_and_leaves,
        "asks for multicast groups as a router would, and leaves them in another guest's name"
    ),
];

const IGMP: u8 = 2;
const QUERY: u8 = 0x11;
const REPORT: u8 = 0x16;
const LEAVE: u8 = 0x17;
const ALL_HOSTS: [u8; 4] = [224, 0, 0, 1];
const ALL_ROUTERS: [u8; 4] = [224, 0, 0, 2];
const V3_ROUTERS: [u8; 4] = [224, 0, 0, 22];
/// The member's group, and the attacker's first.
const GROUP: [u8; 4] = [239, 1, 2, 3];
const FIRST: u32 = 0xefc8_0000;
/// Time after which a query has been answered (s): its own response time, rounded up, and the second that runs.
const ANSWERED: Duration = Duration::from_millis(2100);
/// Time after which the member reports its group again.
const REPORTS_EVERY: Duration = Duration::from_secs(60);

const ROUTER: u8 = 70;
const MEMBER: u8 = 71;
const GUEST: u8 = 72;

fn own(number: u8) -> End {
    End { mac: Guest::mac(number), ip: [10, 79, 0, number], port: 5004 }
}

fn group(ip: [u8; 4]) -> End {
    End { mac: [1, 0, 0x5e, ip[1] & 0x7f, ip[2], ip[3]], ip, port: 5004 }
}

/// A frame with a message of IGMP.
fn igmp(from: End, to: [u8; 4], mut message: Vec<u8>) -> Vec<u8> {
    let words = message.chunks_exact(2).map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    framed(from, group(to), &ipv4(from, group(to), IGMP, &message))
}

/// A message of IGMPv2 about `about`; queries give 0.1 s for answers.
fn about(from: End, to: [u8; 4], kind: u8, about: [u8; 4]) -> Vec<u8> {
    igmp(from, to, [&[kind, u8::from(kind == QUERY), 0, 0][..], &about].concat())
}

fn data(from: End, to: [u8; 4], number: u32) -> Vec<u8> {
    let payload = udp(from, group(to), &number.to_be_bytes());
    framed(from, group(to), &ipv4(from, group(to), UDP, &payload))
}

/// A network in which the router has asked, and the member and the attacker have answered.
struct Tv {
    router: Ear,
    member: Ear,
    guest: Ear,
    sent: u32,
    reported: Instant,
}

impl Tv {
    fn tune(field: &Field) -> Strike<Self> {
        let [router, member, guest] =
            [TV_ROUTER, TV_MEMBER, TV_GUEST].map(|name| Ear::attach(&field.socket(name)));
        let mut tv = Self {
            router: router?,
            member: member?,
            guest: guest?,
            sent: 0,
            reported: Instant::now(),
        };
        let query = about(own(ROUTER), ALL_HOSTS, QUERY, [0; 4]);
        for ear in [&mut tv.member, &mut tv.guest] {
            ear.must_hear(&tv.router, &query, "a router's query does not reach a guest")?;
        }
        tv.report()?;
        tv.guest.say(&about(own(GUEST), FIRST.to_be_bytes(), REPORT, FIRST.to_be_bytes()))?;
        std::thread::sleep(ANSWERED);
        tv.stands()?;
        Ok(tv)
    }

    fn report(&mut self) -> Strike {
        self.reported = Instant::now();
        self.member.say(&about(own(MEMBER), GROUP, REPORT, GROUP))
    }

    /// The member gets its group, and not that of the attacker.
    fn stands(&mut self) -> Strike {
        if self.reported.elapsed() > REPORTS_EVERY {
            self.report()?;
        }
        self.sent += 1;
        let [own_group, foreign] =
            [GROUP, FIRST.to_be_bytes()].map(|to| data(own(ROUTER), to, self.sent));
        let Self { router, member, guest, .. } = self;
        member.must_not_hear(router, &[foreign], &own_group, "a guest gets a group of another")?;
        for ear in [router, guest] {
            ear.read(|_| ());
        }
        Ok(())
    }
}

fn a_hundred_thousand_groups(field: &Field) -> Strike {
    let mut tv = Tv::tune(field)?;
    let mut next = 0;
    loop {
        tv.guest.guest.load(1, |slot| {
            let number = if slot == 0 { 0 } else { (next + u32::from(slot)) % 100_000 };
            // The member's group is among the reported groups. Its frames go to its members only,
            // whoever they are.
            let to = if slot == 1 { GROUP } else { (FIRST + number).to_be_bytes() };
            (Header::default(), about(own(GUEST), to, REPORT, to))
        });
        next += u32::from(tv.guest.guest.pump(1));
        tv.guest.guest.taken(1, "reports")?;
        field.struck();
        tv.stands()?;
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn forged_queries_and_leaves(field: &Field) -> Strike {
    let mut tv = Tv::tune(field)?;
    // The attacker's address is lower than the router's, or is the member's.
    let (lower, member) =
        (End { ip: [10, 79, 0, 1], ..own(GUEST) }, End { ip: own(MEMBER).ip, ..own(GUEST) });
    let to_include = [&[0x22, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0][..], &GROUP].concat();
    let forged = [
        about(lower, ALL_HOSTS, QUERY, [0; 4]),
        about(lower, GROUP, QUERY, GROUP),
        about(member, ALL_ROUTERS, LEAVE, GROUP),
        igmp(member, V3_ROUTERS, to_include),
    ];
    loop {
        tv.sent += 1;
        let last = data(own(GUEST), GROUP, tv.sent);
        let why = "a guest hears a forged query or another guest's leave";
        tv.member.must_not_hear(&tv.guest, &forged, &last, why)?;
        // The group stays registered.
        tv.guest.say(&about(own(GUEST), GROUP, REPORT, GROUP))?;
        field.struck();
        tv.stands()?;
        std::thread::sleep(Duration::from_millis(5));
    }
}
