//! An uplink's port without a switch: one burst of UDP packets, delivered over and over, shows the kernel's limit
//! for the uplink:
//!
//! ```sh
//! cargo run --release -p weir-port-xdp --example uplink_limit -- af_xdp eth0 64 5
//! ```
//!
//! `uplink_limit ask TAP TAP 10000 5` is another program: requests and answers between two guests that read and write
//! TAPs, which a bridge connects.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use weir_engine::burst::{Pieces, Scratch, TakenChain};
use weir_engine::{Outgoing, Port, PortCounters};
use weir_guestmem::HostBuffer;
use weir_limits::BURST_MAX;
use weir_port_packet::{PacketOptions, PacketSocket};
use weir_port_tap::{FramePort, Tap, TapOptions};
use weir_port_xdp::{XdpInterface, XdpOptions, XdpPort};
use weir_wire::VnetHdr;
use weir_wire::checksum::ipv4_header_checksum;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [command, args @ ..] = args.as_slice()
        && command == "ask"
    {
        return ask(args);
    }
    let [kind, interface, frame_bytes, seconds] = args.as_slice() else {
        return Err("usage: uplink_limit tap|af_packet|af_xdp INTERFACE FRAME_BYTES SECONDS".into());
    };
    let (frame_bytes, seconds): (usize, u32) = (frame_bytes.parse()?, seconds.parse()?);
    let counters = Arc::new(PortCounters::default());
    let port = open(kind, interface, &counters)?;

    let frame = udp(frame_bytes)?;
    let buffers: Vec<_> = (0..BURST_MAX).map(|_| buffer(&frame)).collect();
    let mut scratch = Scratch::default();
    let mut burst = scratch.lend();
    for buffer in &buffers {
        let Some(whole) = buffer.slice(0, buffer.len()) else { continue };
        let pieces = Pieces::Only(whole);
        let chain = TakenChain { token: 0, len: buffer.len() as u32, pieces };
        burst.add(chain, VnetHdr::LEN, 0)?;
    }
    let frames: Vec<_> = (0..BURST_MAX as u16).map(Outgoing::untagged).collect();
    for second in 1..=seconds {
        let before = counters.rx[0].frames.get();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) {
            port.deliver(0, &burst, &frames);
        }
        println!("{second:3} s  {:9} frames/s", counters.rx[0].frames.get() - before);
    }
    Ok(())
}

/// Time before the first request that counts.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time for the last answers, and the longest sleep.
const REST: Duration = Duration::from_millis(100);
const REQUEST_BYTES: usize = 64;
/// The place of a request's time, behind the headers of Ethernet, IPv4 and UDP.
const TIME_AT: usize = VnetHdr::LEN + 42;

/// The guest at the first TAP sends requests of 64 bytes at a steady rate, the guest at the second answers. Both sleep
/// until a frame comes. Prints `warm` and, at the end, the round-trip times after that.
fn ask(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [here, there, rate, seconds] = args else {
        return Err("usage: uplink_limit ask TAP TAP REQUESTS_PER_SECOND SECONDS".into());
    };
    let (rate, seconds): (u32, u64) = (rate.parse()?, seconds.parse()?);
    let open = |name: &String| {
        Tap::open(&TapOptions { name: name.clone(), queues: 1, mtu: None, mac: None })
    };
    let (here, there) = (open(here)?, open(there)?);
    let [Some(here), Some(there)] = [&here, &there].map(|tap| tap.queues().first()) else {
        return Err("a TAP has no queue".into());
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let answering = scope.spawn(|| answer(there, &stop));
        let asked = ask_at(here, rate, WARM_UP + Duration::from_secs(seconds));
        stop.store(true, Ordering::Relaxed);
        answering.join().map_err(|_| "the one who answers panicked")??;
        asked
    })?;
    Ok(())
}

fn ask_at(tap: &OwnedFd, rate: u32, time: Duration) -> Result<(), Box<dyn Error>> {
    let mut frame = [vec![0; VnetHdr::LEN], udp(REQUEST_BYTES)?].concat();
    let (gap, start) = (Duration::from_secs(1) / rate, Instant::now());
    let (mut sent, mut asked, mut times, mut is_warm) = (0_u32, 0, Vec::new(), false);
    while start.elapsed() < time + REST {
        let due = (start.elapsed().min(time).as_nanos() / gap.as_nanos()) as u32;
        while sent < due {
            let now = start.elapsed();
            frame[TIME_AT..TIME_AT + 8].copy_from_slice(&(now.as_nanos() as u64).to_le_bytes());
            write(tap, &frame)?;
            sent += 1;
            asked += u32::from(now >= WARM_UP);
        }
        take_all(tap, |answer| {
            let time = answer.get(TIME_AT..).and_then(|bytes| bytes.first_chunk().copied());
            let sent = Duration::from_nanos(u64::from_le_bytes(time.unwrap_or_default()));
            if sent >= WARM_UP {
                times.push(start.elapsed().saturating_sub(sent));
            }
        })?;
        if !is_warm && start.elapsed() >= WARM_UP {
            println!("warm");
            is_warm = true;
        }
        sleep(tap, (gap * (sent + 1)).saturating_sub(start.elapsed()))?;
    }
    times.sort_unstable();
    let us = |share: f64| {
        let at = times.get((times.len() as f64 * share) as usize);
        at.map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    };
    let (p50, p99, p999) = (us(0.5), us(0.99), us(0.999));
    let answered = times.len();
    println!(
        "{asked} asked  {answered} answered  p50 {p50:.1} us  p99 {p99:.1} us  p99.9 {p999:.1} us"
    );
    Ok(())
}

/// Sends each request back.
fn answer(tap: &OwnedFd, stop: &AtomicBool) -> Result<(), Errno> {
    while !stop.load(Ordering::Relaxed) {
        let mut sent = Ok(0);
        take_all(tap, |frame| {
            let (to, from) = frame[VnetHdr::LEN..VnetHdr::LEN + 12].split_at_mut(6);
            to.swap_with_slice(from);
            sent = sent.and(write(tap, frame));
        })?;
        sent?;
        sleep(tap, REST)?;
    }
    Ok(())
}

/// Takes all frames that are as long as a request.
fn take_all(tap: &OwnedFd, mut each: impl FnMut(&mut [u8])) -> Result<(), Errno> {
    let mut room = [0; 2048];
    loop {
        match read(tap, &mut room) {
            Ok(len) if len == VnetHdr::LEN + REQUEST_BYTES => each(&mut room[..len]),
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Sleeps until a frame comes, or for `time`.
fn sleep(tap: &OwnedFd, time: Duration) -> Result<(), Errno> {
    let time = Timespec { tv_sec: 0, tv_nsec: time.min(REST).subsec_nanos().into() };
    let tap = PollFd::from_borrowed_fd(tap.as_fd(), PollFlags::IN);
    match poll(&mut [tap], Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn open(
    kind: &str,
    interface: &str,
    counters: &Arc<PortCounters>,
) -> Result<Box<dyn Port>, Box<dyn Error>> {
    let (name, queues, mtu) = (interface.to_owned(), 1, None);
    let counters = Arc::clone(counters);
    Ok(match kind {
        "tap" => {
            let tap = Tap::open(&TapOptions { name, queues, mtu, mac: None })?;
            Box::new(FramePort::new(tap, counters))
        }
        "af_packet" => {
            let socket = PacketSocket::open(&PacketOptions { name, queues, mtu })?;
            Box::new(FramePort::new(socket, counters))
        }
        "af_xdp" => {
            let interface = XdpInterface::open(&XdpOptions { name, queues, mtu })?;
            Box::new(XdpPort::new(interface, counters))
        }
        other => return Err(format!("no such kind of uplink: {other}").into()),
    })
}

/// A packet to an address that the host does not have, without a UDP checksum.
fn udp(frame_bytes: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    const HEADERS: usize = 14 + 20 + 8;
    let payload = frame_bytes.checked_sub(HEADERS).ok_or("no room for the headers")?;
    let udp_len = u16::try_from(8 + payload)?;
    let mut frame = vec![0x52, 0x54, 0, 0, 1, 2, 0x52, 0x54, 0, 0, 1, 1, 8, 0, 0x45, 0];
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 1, 1, 10, 0, 1, 2]);
    let checksum = ipv4_header_checksum(&frame[14..]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend([0x9c, 0x40, 0x14, 0x51]); // ports 40000 and 5201
    frame.extend(udp_len.to_be_bytes());
    frame.resize(frame_bytes, 0);
    Ok(frame)
}

/// `frame` as a guest has it in its memory, with a `virtio_net_hdr`.
fn buffer(frame: &[u8]) -> HostBuffer {
    let buffer = HostBuffer::new(VnetHdr::LEN + frame.len());
    if let Some(slice) = buffer.slice(VnetHdr::LEN, frame.len()) {
        slice.write(frame);
    }
    buffer
}
