//! The program at the other end of a stream uplink, and a guest that floods it.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        ear::Ear,
        frame::{BROADCAST, EXPERIMENTAL, Header, Mac, frame, tagged},
        guest::Guest,
        harm,
        link::Link,
    },
    measure::switch::{ADDRESSES, NEAR, NEAR_NUMBERS, PROGRAM},
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

/// Longest time until weir connects, or until a frame arrives: weir connects once a second.
const PATIENCE: Duration = Duration::from_secs(4);
/// Longest frame of the uplink, with a tag.
const LEN_MAX: u32 = 1518;
/// A station behind the program.
const FAR: Mac = [2, 0xfa, 0, 0, 0, 1];

/// The two guests' addresses.
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
    number: u32,
}

impl Near {
    fn attach(field: &Field) -> Strike<Self> {
        let [first, second] = NEAR.map(|name| Ear::attach(&field.socket(name)));
        let mut near = Self { first: first?, second: second?, number: 0 };
        near.talk("before anything")?;
        Ok(near)
    }

    fn next(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    /// Checks that a frame of each guest reaches the other guest.
    fn talk(&mut self, why: &str) -> Strike {
        let ([one, other], number) = (macs(), self.next());
        let Self { first, second, .. } = self;
        second.must_hear(first, &numbered(other, one, number), why)?;
        first.must_hear(second, &numbered(one, other, number), why)
    }

    /// The first guest hears `frame`, which was sent.
    fn hears(&mut self, frame: &[u8], why: &str) -> Strike {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let mut heard = false;
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
    let [a, b, c, d] = number.to_be_bytes();
    frame([2, 9, a, b, c, d], macs()[0], EXPERIMENTAL, len)
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

fn program_that_floods(field: &Field) -> Strike {
    let program = Program::listen(field)?;
    let mut stream = program.meet()?;
    let mut near = Near::attach(field)?;
    let to = |number: u32| match number % 3 {
        0 => BROADCAST,
        1 => macs()[0],
        _ => [2, 9, 9, 9, 9, number as u8],
    };
    let burst: Vec<u8> =
        (0..1000).flat_map(|number| prefixed(&from_far(to(number), number))).collect();
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
