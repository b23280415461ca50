//! The other end of an uplink, and a guest that floods it: the program of a stream, and the peer of an interface that
//! weir has by AF_XDP.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use rustix::io::Errno;
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_tap::FrameDevice;

use crate::{
    attack,
    attack::{Attack, Field, User},
    front::{
        Miss, Strike,
        ear::Ear,
        frame::{BROADCAST, EXPERIMENTAL, Header, Mac, frame, tagged, tcp},
        guest::Guest,
        harm,
        link::Link,
    },
    measure::switch::{
        ADDRESSES, CARDED, CARDED_NUMBERS, NEAR, NEAR_NUMBERS, PROGRAM, card, ip, lay,
    },
    random::Random,
    slow_closes::Slow,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(program_that_reads_nothing, "is the program of a stream uplink, and reads no frame"),
    attack!(
        program_that_reads_a_byte_at_a_time,
        "reads so little at a time that frames find room for a part of them only"
    ),
    attack!(
        program_that_sends_halves,
        "sends halves of frames, the rest byte by byte, and hangs up in the middle of one"
    ),
    attack!(program_whose_lengths_lie, "sends frames of 0 bytes, of 4 GiB, and of much between"),
    attack!(program_that_hangs_up_at_once, "ends each connection as soon as it has begun"),
    attack!(
        program_in_guests_names,
        "sends frames with the source addresses of guests, also with others' VLANs"
    ),
    attack!(program_that_floods, "sends frames for all and for unknown stations without a pause",
        own_share: "an uplink has its share of the workers as guests have"),
    attack!(guest_that_floods_a_program, "has a guest flood a program that reads slowly",
        own_share: "what the guest sends is charged to it"),
    attack!(
        program_that_sends_descriptors,
        "sends descriptors beside frames that take long to close, and hangs up on some"
    ),
];

/// The attacks by the peer of an AF_XDP uplink, at the far end of a pair of veth devices.
pub const OF_A_CARD: &[Attack] = &[
    attack!(
        peer_that_sends_what_it_likes,
        "sends frames of any length, tags and offload to an AF_XDP uplink, whole and by chance",
        as_root
    ),
    attack!(
        peer_in_guests_names,
        "sends frames with the source addresses of guests, also with others' VLANs",
        as_root
    ),
    attack!(
        peer_that_pulls_the_cable,
        "takes the link away under the frames of a guest, and gives it back",
        as_root
    ),
    Attack {
        user: User::Root,
        ..attack!(peer_that_floods, "sends frames for all and for unknown stations without a pause",
            own_share: "an uplink has its share of the workers as guests have")
    },
    Attack {
        user: User::Root,
        ..attack!(guest_that_floods_a_dead_card, "has a guest flood an AF_XDP uplink without a link",
            own_share: "what the guest sends is charged to it")
    },
    Attack {
        user: User::Root,
        ..attack!(
            peer_that_removes_the_card,
            "removes the interface under the flood of a guest",
            outlasts
        )
    },
];

/// Longest time until weir connects, or until a frame arrives: weir connects once a second.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longest frame of the uplink, with a tag.
const LEN_MAX: u32 = 1518;
/// A station behind the program.
const FAR: Mac = [2, 0xfa, 0, 0, 0, 1];

/// The addresses of the program's two guests.
fn macs() -> [Mac; 2] {
    NEAR_NUMBERS.map(Guest::mac)
}

/// A frame behind its length.
fn prefixed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// A frame of a station behind the program. No other frame equals it.
fn from_far(to: Mac, number: u32) -> Vec<u8> {
    numbered(to, FAR, number)
}

fn numbered(to: Mac, from: Mac, number: u32) -> Vec<u8> {
    let mut bytes = frame(to, from, EXPERIMENTAL, 100);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The program.
struct Program {
    listener: UnixListener,
}

impl Program {
    fn listen(field: &Field) -> Strike<Self> {
        let path = field.dir().join(PROGRAM);
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// weir's next connection.
    fn meet(&self) -> Strike<UnixStream> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_write_timeout(Some(PATIENCE))?;
                    stream.set_read_timeout(Some(Duration::from_millis(1)))?;
                    return Ok(stream);
                }
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                Err(_) if Instant::now() > end => {
                    return harm("weir does not connect to a program that listens");
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Two guests in the VLAN of the uplink.
struct Near {
    first: Ear,
    second: Ear,
    macs: [Mac; 2],
    number: u32,
}

impl Near {
    fn attach(field: &Field) -> Strike<Self> {
        Self::of(field, NEAR, NEAR_NUMBERS)
    }

    fn of(field: &Field, names: [&str; 2], numbers: [u8; 2]) -> Strike<Self> {
        let [first, second] = names.map(|name| Ear::attach(&field.socket(name)));
        let macs = numbers.map(Guest::mac);
        let mut near = Self { first: first?, second: second?, macs, number: 0 };
        near.talk("before anything")?;
        Ok(near)
    }

    fn next(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    /// Checks that a frame of each guest reaches the other guest.
    fn talk(&mut self, why: &str) -> Strike {
        let ([one, other], number) = (self.macs, self.next());
        let Self { first, second, .. } = self;
        second.must_hear(first, &numbered(other, one, number), why)?;
        first.must_hear(second, &numbered(one, other, number), why)
    }

    /// The first guest hears `frame`, which was sent.
    fn hears(&mut self, frame: &[u8], why: &str) -> Strike {
        self.hears_one_day(frame, why, || ())
    }

    /// The first guest hears `frame`, which `say` sends again and again.
    fn hears_one_day(&mut self, frame: &[u8], why: &str, mut say: impl FnMut()) -> Strike {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let mut heard = false;
            say();
            self.first.read(|got| heard |= got.starts_with(frame));
            if heard {
                return Ok(());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        harm(why)
    }
}

/// Reads what is there, and returns true at the end of the connection.
fn drain(stream: &mut UnixStream, into: &mut Vec<u8>, most: usize) -> bool {
    let mut room = [0; 4096];
    let mut left = most;
    while left > 0 {
        let len = left.min(room.len());
        match stream.read(&mut room[..len]) {
            Ok(0) => return true,
            Ok(len) => {
                left -= len;
                into.extend(&room[..len]);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
    false
}

/// Takes whole frames out of what weir has sent. Their lengths and senders must be those of the guests.
fn frames(stream: &mut Vec<u8>) -> Strike<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while let Some((len, rest)) = stream.split_first_chunk::<4>() {
        let len = u32::from_be_bytes(*len);
        if !(14..=LEN_MAX).contains(&len) {
            return harm(format!("weir announces a frame of {len} bytes"));
        }
        let Some(whole) = rest.get(..len as usize).map(<[u8]>::to_vec) else { break };
        if !macs().iter().any(|mac| whole[6..12] == *mac) {
            return harm("weir sends a program bytes that are no guest's frame");
        }
        stream.drain(..4 + whole.len());
        all.push(whole);
    }
    Ok(all)
}

/// A frame of the first guest for a station that is not there.
fn astray(number: u32, len: usize) -> Vec<u8> {
    astray_from(macs()[0], number, len)
}

fn astray_from(from: Mac, number: u32, len: usize) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    frame([2, 9, a, b, c, d], from, EXPERIMENTAL, len)
}

fn program_that_reads_nothing(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let _stream = program.meet()?;
    let mut near = Near::attach(field)?;
    loop {
        for _ in 0..16 {
            let number = near.next();
            near.first.say(&astray(number, 1400))?;
            near.second.read(|_| ());
        }
        near.talk("beside a program that reads nothing")?;
        field.struck();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn program_that_reads_a_byte_at_a_time(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut stream = program.meet()?;
    let (mut near, mut came) = (Near::attach(field)?, Vec::new());
    loop {
        for len in [1, 1, 3, 5000, 1, 2, 700] {
            let number = near.next();
            near.first.say(&astray(number, 60 + number as usize * 37 % 1440))?;
            near.second.read(|_| ());
            if drain(&mut stream, &mut came, len) {
                return harm("weir hangs up on a program that reads slowly");
            }
            frames(&mut came)?;
        }
        near.talk("beside a program that reads slowly")?;
        field.struck();
    }
}

fn program_that_sends_halves(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut near = Near::attach(field)?;
    loop {
        let mut stream = program.meet()?;
        let sent = from_far(macs()[0], near.next());
        let whole = prefixed(&sent);
        for half in [2, 4, 50, whole.len() - 1] {
            stream.write_all(&whole[..half])?;
            near.talk("beside half a frame")?;
            for byte in &whole[half..] {
                stream.write_all(&[*byte])?;
            }
            near.hears(&sent, "a frame that comes in pieces is lost")?;
        }
        stream.write_all(&whole[..whole.len() / 2])?;
        drop(stream);
        near.talk("after half a frame")?;
        field.struck();
    }
}

fn program_whose_lengths_lie(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut near = Near::attach(field)?;
    for lie in [u32::MAX, 1 << 31, 1 << 16, 16_018, LEN_MAX + 1].into_iter().cycle() {
        let mut stream = program.meet()?;
        for short in [0, 1, 13] {
            stream.write_all(&prefixed(&vec![0xff; short]))?;
        }
        let sent = from_far(macs()[0], near.next());
        stream.write_all(&prefixed(&sent))?;
        near.hears(&sent, "what follows a frame of no bytes is lost")?;
        // weir may have hung up before the last byte is written.
        let _ = stream.write_all(&[&lie.to_be_bytes()[..], &[7; 3000]].concat());
        let (end, mut rest) = (Instant::now() + PATIENCE, Vec::new());
        while !drain(&mut stream, &mut rest, usize::MAX) {
            if Instant::now() > end {
                return harm(format!("weir waits for a frame of {lie} bytes"));
            }
        }
        near.talk("after a length that lies")?;
        field.struck();
    }
    Ok(())
}

fn program_that_hangs_up_at_once(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut near = Near::attach(field)?;
    let began = Instant::now();
    for times in 1_u64.. {
        drop(program.meet()?);
        // weir connects once a second, and once at the beginning.
        if times > began.elapsed().as_secs() + 2 {
            return harm(format!("weir connects {times} times in {:?}", began.elapsed()));
        }
        near.talk("beside a program that hangs up")?;
        field.struck();
    }
    Ok(())
}

fn program_in_guests_names(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut stream = program.meet()?;
    let (mut near, mut came) = (Near::attach(field)?, Vec::new());
    let [one, other] = macs();
    loop {
        for from in [one, other, ADDRESSES[0], ADDRESSES[1]] {
            for to in [BROADCAST, one, other, [2, 9, 9, 9, 9, 9]] {
                stream.write_all(&prefixed(&frame(to, from, EXPERIMENTAL, 60)))?;
                for vlan in [1, 22, 23] {
                    let tags = [(0x8100, vlan)];
                    stream.write_all(&prefixed(&tagged(to, from, &tags, 64)))?;
                }
            }
        }
        let private = numbered(other, one, near.next());
        let Near { first, second, .. } = &mut near;
        second.must_hear(first, &private, "a program has a guest's address")?;
        if drain(&mut stream, &mut came, usize::MAX) {
            return harm("weir hangs up on a program that sends whole frames");
        }
        if frames(&mut came)?.contains(&private) {
            return harm("a program gets a frame between two guests");
        }
        near.talk("beside a program in guests' names")?;
        field.struck();
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A thousand frames of a station behind the uplink for all, for a guest and for stations that are not there.
fn flood(to: Mac) -> impl Iterator<Item = Vec<u8>> {
    (0..1000).map(move |number| match number % 3 {
        0 => from_far(BROADCAST, number),
        1 => from_far(to, number),
        _ => from_far([2, 9, 9, 9, 9, number as u8], number),
    })
}

fn program_that_floods(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut stream = program.meet()?;
    let mut near = Near::attach(field)?;
    let burst: Vec<u8> = flood(macs()[0]).flat_map(|frame| prefixed(&frame)).collect();
    loop {
        for _ in 0..8 {
            if stream.write_all(&burst).is_err() {
                return harm("weir reads nothing of a flood");
            }
        }
        near.talk("beside a program that floods")?;
        field.struck();
    }
}

fn guest_that_floods_a_program(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut stream = program.meet()?;
    let (mut near, mut came) = (Near::attach(field)?, Vec::new());
    near.first.guest.load(1, |slot| (Header::default(), astray(slot.into(), 1000)));
    loop {
        let Near { first, second, .. } = &mut near;
        second.flooded_by(&first.guest)?;
        if drain(&mut stream, &mut came, 64 << 10) {
            return harm("weir hangs up on a program that reads slowly");
        }
        frames(&mut came)?;
        field.struck();
    }
}

fn program_that_sends_descriptors(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut near = Near::attach(field)?;
    let slow = Slow::new()?;
    loop {
        let link = Link::of(program.meet()?.into());
        let whole = prefixed(&from_far(macs()[0], near.next()));
        // weir may hang up at the first message.
        let _ = slow.send(&link, &whole);
        near.talk("beside a descriptor that closes slowly")?;
        let _ = slow.send(&link, &whole[..9]);
        drop(link);
        near.talk("after a descriptor that nobody has read")?;
        field.struck();
    }
}

/// The far end of the interface that weir has by AF_XDP, and two guests in its VLAN.
struct Card {
    name: String,
    far: PacketSocket,
    near: Near,
}

impl Card {
    fn open(field: &Field) -> Strike<Self> {
        let name = card(field.dir());
        let far = PacketOptions { name: format!("{name}-end"), queues: 1, mtu: None };
        // This brings the link up, which an attacker may have left without.
        let far = PacketSocket::open(&far).map_err(|_| Miss::Refused(Errno::NODEV))?;
        let near = Near::of(field, CARDED, CARDED_NUMBERS)?;
        Ok(Self { name, far, near })
    }

    /// Sends a frame with what it says about offloads. The kernel takes no frame that the link does not carry.
    fn send(&self, header: Header, frame: &[u8]) {
        let bytes = [&header.bytes()[..self.far.vnet_len()], frame].concat();
        let _ = rustix::io::write(&self.far.queues()[0], &bytes);
    }

    /// The guests are served, and a frame of the peer arrives.
    fn carries(&mut self, why: &str) -> Strike {
        self.near.talk(why)?;
        let sent = from_far(self.near.macs[0], self.near.next());
        let bytes = [&[0; 16][..self.far.vnet_len()], &sent].concat();
        let queue = &self.far.queues()[0];
        self.near.hears_one_day(&sent, &format!("the peer's frame is lost {why}"), || {
            let _ = rustix::io::write(queue, &bytes);
        })
    }

    /// A guest floods the uplink with frames for stations that are not there.
    fn is_flooded(&mut self) -> Strike {
        let Near { first, second, macs, .. } = &mut self.near;
        first.guest.load(1, |slot| (Header::default(), astray_from(macs[0], slot.into(), 1000)));
        second.flooded_by(&first.guest)
    }
}

fn peer_that_sends_what_it_likes(field: &Field) -> Strike {
    let (mut card, mut random) = (Card::open(field)?, Random::new());
    let to = card.near.macs[0];
    let deep = [(0x88a8, 27), (0x8100, 27), (0x8100, 1), (0x8100, 0xffff)];
    loop {
        for len in [0, 1, 13, 14, 15, 17, 18, 59, 1514, 1515, 1518, 1522, 1523, 9000, 65_000] {
            card.send(Header::default(), &frame(to, FAR, EXPERIMENTAL, len));
            card.send(Header::default(), &tcp(to, FAR, len));
            // Uncut, without checksums, and with headers of chance.
            card.send(Header::tso(1448), &tcp(to, FAR, len));
            let [flags, gso, a, b, c, d, ..] = random.next().to_be_bytes();
            let [csum_start, csum_offset] = [a, b].map(u16::from);
            let [header_len, gso_size] = [c, d].map(u16::from);
            let header = Header { flags, gso, header_len, gso_size, csum_start, csum_offset };
            card.send(header, &tcp(BROADCAST, FAR, len));
        }
        for tags in 0..=deep.len() {
            for len in [18, 26, 64, 1500] {
                card.send(Header::default(), &tagged(to, FAR, &deep[..tags], len));
            }
        }
        card.carries("beside frames of any kind")?;
        field.struck();
    }
}

fn peer_in_guests_names(field: &Field) -> Strike {
    let mut card = Card::open(field)?;
    let [one, other] = card.near.macs;
    loop {
        for from in [one, other, ADDRESSES[0], ADDRESSES[1]] {
            for to in [BROADCAST, one, other, [2, 9, 9, 9, 9, 9]] {
                card.send(Header::default(), &frame(to, from, EXPERIMENTAL, 60));
                for vlan in [1, 22, 27] {
                    card.send(Header::default(), &tagged(to, from, &[(0x8100, vlan)], 64));
                }
            }
        }
        card.carries("beside a peer in guests' names")?;
        field.struck();
    }
}

fn peer_that_pulls_the_cable(field: &Field) -> Strike {
    let mut card = Card::open(field)?;
    loop {
        for state in ["down", "up"] {
            card.is_flooded()?;
            ip(&format!("link set {}-end {state}", card.name)).map_err(|_| Errno::NODEV)?;
            card.is_flooded()?;
            card.near.talk("where a link comes and goes")?;
        }
        card.carries("after the link was away")?;
        field.struck();
    }
}

fn peer_that_floods(field: &Field) -> Strike {
    let mut card = Card::open(field)?;
    let burst: Vec<_> = flood(card.near.macs[0]).collect();
    loop {
        for frame in burst.iter().cycle().take(8 * burst.len()) {
            card.send(Header::default(), frame);
        }
        card.near.talk("beside a peer that floods")?;
        field.struck();
    }
}

fn guest_that_floods_a_dead_card(field: &Field) -> Strike {
    let mut card = Card::open(field)?;
    ip(&format!("link set {}-end down", card.name)).map_err(|_| Errno::NODEV)?;
    loop {
        card.is_flooded()?;
        card.near.talk("beside a flood of a card without a link")?;
        field.struck();
    }
}

fn peer_that_removes_the_card(field: &Field) -> Strike {
    let mut card = Card::open(field)?;
    card.is_flooded()?;
    // It takes weir's end with it. The next weir finds another one.
    ip(&format!("link del {}-end", card.name)).map_err(|_| Errno::NODEV)?;
    lay(&card.name).map_err(|_| Errno::NODEV)?;
    loop {
        card.is_flooded()?;
        card.near.talk("after its uplink was removed")?;
        field.struck();
    }
}
