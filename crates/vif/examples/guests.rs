//! User-space guests at sockets of a running weir, or of another switch that speaks vhost-user. The first argument says
//! what they do:
//!
//! ```sh
//! guests() { cargo run --release -p weir-vif --example guests -- "$@"; }
//! guests answer /run/weir/web0.sock 52:54:00:77:00:03 10.77.0.3 [packed]
//! ls /run/weir/web*.sock | guests attach
//! guests ask /run/weir/web0.sock /run/weir/db0.sock 10000 5
//! guests paced /run/weir/web0.sock /run/weir/db0.sock 82345 1514 5
//! guests stream /run/weir/web0.sock /run/weir/db0.sock 5 [2048]
//! guests outward /run/weir/web0.sock 64 5
//! ```

use std::error::Error;
use std::io::stdin;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_testing::echo;
use weir_vif::load::{End, Flow, LoadStats, Station, bulk, pingpong, small};
use weir_vif::{Features, Health, Options, QueuePair, SendError, Vif, WaitFor};
use weir_wire::checksum::ipv4_header_checksum;
use weir_wire::{Mac, Offload};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((command, args)) => match command.as_str() {
            "answer" => answer(args),
            "ask" => ask(args),
            "attach" => attach(),
            "outward" => outward(args),
            "paced" => paced(args),
            "stream" => stream(args),
            other => Err(format!("there is no command {other}").into()),
        },
        None => Err("usage: guests answer|ask|attach|outward|paced|stream ARGUMENTS".into()),
    }
}

/// Returns the flow from the first guest to the second.
fn flow() -> Flow {
    let station =
        |n| Station { mac: Mac([0x52, 0x54, 0, 0, 1, n]), ip: Ipv4Addr::new(10, 0, 1, n) };
    Flow { local: station(1), remote: station(2), local_port: 40_000, remote_port: 5201 }
}

/// Connects the guest `station` to the switch's socket at `path`.
///
/// # Errors
/// As [`Vif::connect`].
fn join(path: &str, station: Station) -> Result<Vif, Box<dyn Error>> {
    join_with(path, &options(station))
}

/// Connects like [`join`], with `options`.
///
/// # Errors
/// As [`Vif::connect`].
fn join_with(path: &str, options: &Options) -> Result<Vif, Box<dyn Error>> {
    Ok(Vif::connect(path, options)?)
}

/// Returns the options of the guest `station`.
fn options(station: Station) -> Options {
    Options { queue_size: 1024, ..Options::new(station.mac) }
}

/// Interval of the checks that weir still serves, and of the attempts to reconnect.
const INTERVAL: Duration = Duration::from_millis(200);

/// Answers ARP and ping at an address until the program is interrupted, and reconnects whenever the switch comes back.
fn answer(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [socket, mac, ip, rings @ ..] = args else {
        return Err("usage: answer SOCKET MAC IP [packed]".into());
    };
    let (mac, ip): (Mac, Ipv4Addr) = (mac.parse()?, ip.parse()?);
    let mut options = Options::new(mac);
    if rings.first().is_some_and(|rings| rings == "packed") {
        options.required = options.required | Features::RING_PACKED;
    }
    loop {
        match Vif::connect(socket, &options) {
            Ok(vif) => {
                println!("answering at {ip}");
                serve(vif, mac, ip)?;
            }
            Err(error) => println!("{error}"),
        }
        thread::sleep(INTERVAL);
    }
}

/// Answers until the session ends.
fn serve(mut vif: Vif, mac: Mac, ip: Ipv4Addr) -> Result<(), Box<dyn Error>> {
    let mut pair = vif.queue_pairs().remove(0);
    let mut frame = Vec::new();
    while matches!(vif.health()?, Health::Connected) {
        pair.wait(WaitFor::Receive, INTERVAL)?;
        while pair.recv_into(&mut frame).is_some() {
            if echo::answer(&mut frame, mac, ip).is_some() {
                match pair.send(&frame, &Offload::NONE) {
                    // A frame that finds the ring full gets no answer.
                    Ok(()) | Err(SendError::Full) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        pair.flush();
    }
    Ok(())
}

/// Time before the first request that counts.
const WARM_UP: Duration = Duration::from_secs(1);

/// The first guest sends 64 B requests at a steady rate, the second answers. Both sleep until they are called, as VMs do.
/// Prints the round-trip times after the first second.
fn ask(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [from, to, rate, seconds] = args else {
        return Err("usage: ask FROM.sock TO.sock REQUESTS_PER_SECOND SECONDS".into());
    };
    let (rate, seconds): (u64, u64) = (rate.parse()?, seconds.parse()?);
    let flow = flow();
    let mut asking = join(from, flow.local)?;
    let mut answering = join(to, flow.remote)?;
    let (mut here, mut there) = (asking.queue_pairs().remove(0), answering.queue_pairs().remove(0));

    let (asked, answered) = (LoadStats::default(), LoadStats::default());
    let stop = AtomicBool::new(false);
    let options = pingpong::Options::default();
    thread::scope(|scope| {
        let back = flow.reversed();
        let answering = scope.spawn({
            let (answered, stop) = (&answered, &stop);
            move || pingpong::respond(End { pair: &mut there, flow: &back, stats: answered, stop })
        });
        thread::sleep(Duration::from_millis(100)); // the answering guest announces itself
        let asking = scope.spawn(|| {
            let end = End { pair: &mut here, flow: &flow, stats: &asked, stop: &stop };
            pingpong::request_at(end, &options, rate)
        });
        thread::sleep(WARM_UP);
        println!("warm");
        let (before, times_before) = (asked.snapshot(), asked.latency());
        thread::sleep(Duration::from_secs(seconds));
        let (now, mut times) = (asked.snapshot(), asked.latency());
        times.subtract(&times_before)?;
        let us = |quantile| times.value_at_quantile(quantile) as f64 / 1_000.0;
        println!(
            "{} asked  {} answered  p50 {:.1} us  p99 {:.1} us  p99.9 {:.1} us",
            now.tx_frames - before.tx_frames,
            now.rx_frames - before.rx_frames,
            us(0.5),
            us(0.99),
            us(0.999)
        );
        stop.store(true, Ordering::Relaxed);
        asking.join().map_err(|_| "the one who asks panicked")??;
        answering.join().map_err(|_| "the one who answers panicked")??;
        Ok(())
    })
}

/// Silent guests at sockets that are read as one path a line. They stay until the program is interrupted.
fn attach() -> Result<(), Box<dyn Error>> {
    let mut guests = Vec::new();
    for (number, path) in (0_u16..).zip(stdin().lines()) {
        let [high, low] = number.to_be_bytes();
        guests.push(Vif::connect(path?, &Options::new(Mac([0x52, 0x54, 0, 2, high, low])))?);
    }
    println!("{} attached", guests.len());
    loop {
        thread::park();
    }
}

/// UDP packets at a steady rate from the first guest to the second. 82345 frames of 1514 bytes (1518 with their check
/// sequence) a second are 1 Gbit/s.
fn paced(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [from, to, rate, frame_bytes, seconds] = args else {
        return Err("usage: paced FROM.sock TO.sock FRAMES_PER_SECOND FRAME_BYTES SECONDS".into());
    };
    let options = small::Options {
        frame_bytes: frame_bytes.parse()?,
        rate: small::Rate::PerSecond(rate.parse()?),
        ..small::Options::default()
    };
    let seconds: u32 = seconds.parse()?;
    let flow = flow();
    let mut sender = join(from, flow.local)?;
    let mut receiver = join(to, flow.remote)?;
    let (mut tx, mut rx) = (sender.queue_pairs().remove(0), receiver.queue_pairs().remove(0));

    let (sent, got, stop) = (LoadStats::default(), LoadStats::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let back = flow.reversed();
        let receiving = scope.spawn({
            let (got, stop, options) = (&got, &stop, &options);
            move || small::receive(End { pair: &mut rx, flow: &back, stats: got, stop }, options)
        });
        thread::sleep(Duration::from_millis(100)); // the receiver announces itself
        let sending = scope.spawn(|| {
            small::send(End { pair: &mut tx, flow: &flow, stats: &sent, stop: &stop }, &options)
        });
        for second in 1..=seconds {
            let before = got.snapshot().rx_frames;
            thread::sleep(Duration::from_secs(1));
            let now = got.snapshot();
            let frames = now.rx_frames - before;
            println!("{second:3} s  {frames:9} frames/s  {} lost in all", now.lost);
        }
        stop.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| "the sender panicked")??;
        receiving.join().map_err(|_| "the receiver panicked")??;
        Ok(())
    })
}

/// Bytes of all receive buffers.
const RX_BYTES: u32 = 2 << 20;
const RX_BUFFER_BYTES: u32 = 2 << 10;

/// A TCP-like stream from the first guest to the second. The optional fourth number is the bytes of a receive buffer; all
/// buffers together have 2 MiB.
fn stream(args: &[String]) -> Result<(), Box<dyn Error>> {
    let (from, to, seconds, rx_buffer_bytes) = match args {
        [from, to, seconds] => (from, to, seconds, RX_BUFFER_BYTES),
        [from, to, seconds, bytes] => (from, to, seconds, bytes.parse()?),
        _ => return Err("usage: stream FROM.sock TO.sock SECONDS [BUFFER_BYTES]".into()),
    };
    let seconds: u32 = seconds.parse()?;
    let flow = flow();
    let mut sender = join(from, flow.local)?;
    let queue_size = u16::try_from(RX_BYTES / rx_buffer_bytes.max(1))?;
    let options = Options { rx_buffer_bytes, queue_size, ..options(flow.remote) };
    let mut receiver = join_with(to, &options)?;
    let (mut tx, mut rx) = (sender.queue_pairs().remove(0), receiver.queue_pairs().remove(0));

    let (sent, got, stop) = (LoadStats::default(), LoadStats::default(), AtomicBool::new(false));
    let options = bulk::Options::default();
    thread::scope(|scope| {
        let back = flow.reversed();
        let receiving = scope.spawn({
            let (got, stop, options) = (&got, &stop, &options);
            move || bulk::receive(End { pair: &mut rx, flow: &back, stats: got, stop }, options)
        });
        thread::sleep(Duration::from_millis(100)); // the receiver announces itself
        let sending = scope.spawn(|| {
            bulk::send(End { pair: &mut tx, flow: &flow, stats: &sent, stop: &stop }, &options)
        });
        for second in 1..=seconds {
            let before = got.snapshot().rx_bytes;
            thread::sleep(Duration::from_secs(1));
            let bits = (got.snapshot().rx_bytes - before) * 8;
            println!("{second:3} s  {:7.2} Gbit/s", bits as f64 / 1e9);
        }
        stop.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| "the sender panicked")??;
        receiving.join().map_err(|_| "the receiver panicked")??;
        Ok(())
    })
}

/// Packets sent per notification of the ring.
const BURST: u32 = 64;

/// Sends UDP packets to an outside address as fast as the ring takes them. The guest polls, as DPDK does, and asks for no
/// offload, so that uplinks with and without offloads do the same work.
fn outward(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [from, frame_bytes, seconds] = args else {
        return Err("usage: outward FROM.sock FRAME_BYTES SECONDS".into());
    };
    let (frame_bytes, seconds): (usize, u32) = (frame_bytes.parse()?, seconds.parse()?);
    let flow = flow();
    let frame = udp(&flow, frame_bytes)?;
    let mut sender = join(from, flow.local)?;
    let mut pair = sender.queue_pairs().remove(0);
    pair.suppress_calls();

    for second in 1..=seconds {
        let start = Instant::now();
        let mut sent: u64 = 0;
        while start.elapsed() < Duration::from_secs(1) {
            sent += u64::from(burst(&mut pair, &frame)?);
            // Received frames do not matter, but must not fill the ring.
            while pair.recv(|_| ()).is_some() {}
        }
        println!("{second:3} s  {sent:9} frames/s");
    }
    Ok(())
}

/// Sends packets until the ring is full, one burst at most.
fn burst(pair: &mut QueuePair, frame: &[u8]) -> Result<u32, SendError> {
    for sent in 0..BURST {
        match pair.send(frame, &Offload::NONE) {
            Ok(()) => {}
            Err(SendError::Full) => {
                pair.flush();
                return Ok(sent);
            }
            Err(error) => return Err(error),
        }
    }
    pair.flush();
    Ok(BURST)
}

/// Builds a packet of the flow, without a UDP checksum.
fn udp(flow: &Flow, frame_bytes: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    const HEADERS: usize = 14 + 20 + 8;
    let payload = frame_bytes.checked_sub(HEADERS).ok_or("no room for the headers")?;
    let udp_len = u16::try_from(8 + payload)?;
    let mut frame = [flow.remote.mac.0, flow.local.mac.0].concat();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((20 + udp_len).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    frame.extend([flow.local.ip.octets(), flow.remote.ip.octets()].concat());
    let checksum = ipv4_header_checksum(&frame[14..]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    for number in [flow.local_port, flow.remote_port, udp_len] {
        frame.extend(number.to_be_bytes());
    }
    frame.resize(frame_bytes, 0);
    Ok(frame)
}
