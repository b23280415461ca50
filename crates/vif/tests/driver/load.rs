//! The traffic generators over a back end without losses, and over one with losses.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_vif::load::{End, Flow, LoadError, LoadStats, Station, bulk, mixed, pingpong, small};
use weir_vif::{Features, Options, PairCounters, QueuePair, Vif};

use crate::backend::{Backend, Config};
use crate::{MACS, STUCK};

/// Two connected interfaces and the flow between them.
struct Bench {
    backend: Backend,
    vifs: Vec<Vif>,
    pairs: Vec<QueuePair>,
    flow: Flow,
    stop: Arc<AtomicBool>,
}

struct Endpoint {
    stats: Arc<LoadStats>,
    counters: Arc<PairCounters>,
    thread: JoinHandle<Result<(), LoadError>>,
}

impl Bench {
    fn new(config: &Config) -> Self {
        Self::with(config, |options| options)
    }

    /// Builds a bench with changed options.
    fn with(config: &Config, change: impl Fn(Options) -> Options) -> Self {
        let (backend, sockets) = Backend::pair(config);
        let mut vifs = sockets
            .into_iter()
            .zip(MACS)
            .map(|(socket, mac)| Vif::over(socket, &change(Options::new(mac))).unwrap())
            .collect::<Vec<_>>();
        let pairs = vifs.iter_mut().flat_map(Vif::queue_pairs).collect();
        let station = |n: usize| Station { mac: MACS[n], ip: Ipv4Addr::new(10, 0, 0, 1 + n as u8) };
        Self {
            backend,
            vifs,
            pairs,
            flow: Flow {
                local: station(0),
                remote: station(1),
                local_port: 40_000,
                remote_port: 5201,
            },
            stop: Arc::default(),
        }
    }

    /// Starts the first or the second endpoint, in turn.
    fn start(
        &mut self,
        run: impl FnOnce(End<'_>) -> Result<(), LoadError> + Send + 'static,
    ) -> Endpoint {
        let mut pair = self.pairs.remove(0);
        let flow = if self.pairs.is_empty() { self.flow.reversed() } else { self.flow };
        let stats = Arc::new(LoadStats::default());
        let counters = pair.counters();
        let (stop, shared) = (Arc::clone(&self.stop), Arc::clone(&stats));
        Endpoint {
            stats,
            counters,
            thread: std::thread::spawn(move || {
                run(End { pair: &mut pair, flow: &flow, stats: &shared, stop: &stop })
            }),
        }
    }

    /// Waits until `enough` holds, and ends everything.
    fn finish(self, endpoints: &mut [Endpoint], enough: impl Fn(&[Endpoint]) -> bool) {
        let (mut since, mut before) = (Instant::now(), 0);
        while !enough(endpoints) {
            let received: u64 = endpoints.iter().map(|e| e.stats.snapshot().rx_frames).sum();
            if received > before {
                (since, before) = (Instant::now(), received);
            }
            let running = endpoints.iter().all(|e| !e.thread.is_finished());
            let stuck = since.elapsed() > STUCK;
            if stuck || !running {
                let all: Vec<_> = endpoints.iter().map(|e| e.stats.snapshot()).collect();
                panic!("stuck: {stuck}, {all:#?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.stop.store(true, Ordering::Relaxed);
        for endpoint in endpoints.iter_mut() {
            let done = std::thread::spawn(|| Ok(()));
            std::mem::replace(&mut endpoint.thread, done).join().unwrap().unwrap();
        }
        drop(self.vifs);
        self.backend.join();
    }
}

fn bulk_options() -> bulk::Options {
    bulk::Options { verify_payload: true, window_bytes: 256 << 10, ..bulk::Options::default() }
}

/// Runs a stream of `bytes`. Returns sender and receiver.
fn stream(config: &Config, bytes: u64) -> [Endpoint; 2] {
    stream_over(Bench::new(config), bytes)
}

fn stream_over(mut bench: Bench, bytes: u64) -> [Endpoint; 2] {
    let receiver = bench.start(|end| bulk::receive(end, &bulk_options()));
    let sender = bench.start(|end| bulk::send(end, &bulk_options()));
    let mut both = vec![sender, receiver];
    bench.finish(&mut both, |all| all[1].stats.snapshot().rx_bytes >= bytes);
    both.try_into().ok().unwrap()
}

#[test]
fn a_stream_arrives_whole_in_large_frames() {
    let [sender, receiver] = stream(&Config::default(), 50 << 20);
    let (sent, received) = (sender.stats.snapshot(), receiver.stats.snapshot());
    assert!(sent.tx_bytes / sent.tx_frames > 60_000, "{sent:?}");
    assert!(sent.tx_bytes >= received.rx_bytes);
    assert_eq!(received.invalid + received.lost, 0, "{received:?}");
    assert_eq!(sent.invalid, 0, "{sent:?}");
    assert!(sender.stats.latency().len() > 100);
    assert!(receiver.counters.snapshot().kicks > 0);
}

#[test]
fn a_stream_without_offloads_has_valid_checksums_and_segments_of_the_mtu() {
    let config =
        Config { features: Features::VERSION_1 | Features::MRG_RXBUF, ..Config::default() };
    let [sender, receiver] = stream(&config, 2 << 20);
    let (sent, received) = (sender.stats.snapshot(), receiver.stats.snapshot());
    assert_eq!(sent.tx_bytes / sent.tx_frames, 1460);
    assert_eq!(received.invalid + received.lost, 0, "{received:?}");
}

#[test]
fn a_stream_over_a_lossy_network_arrives_whole_and_the_loss_shows() {
    let config = Config {
        // Loses one frame in eight, without a period: retransmissions have one, and the two could
        // match for ever.
        lose: |number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 == 0,
        ..Config::default()
    };
    let [sender, receiver] = stream(&config, 10 << 20);
    let (sent, received) = (sender.stats.snapshot(), receiver.stats.snapshot());
    assert!(sent.retransmitted > 0 && sent.timeouts > 0, "{sent:?}");
    // The loss of a window's last frame leaves no gap, but other losses do.
    assert!(received.lost > 0, "{received:?}");
    assert_eq!(received.invalid, 0, "{received:?}");
}

/// Packed rings, in order and not.
fn packed() -> [Features; 2] {
    [Features::RING_PACKED, Features::RING_PACKED | Features::IN_ORDER]
}

fn over(format: Features) -> Bench {
    Bench::with(&Config::default(), |options| Options {
        features: options.features | format,
        required: format,
        ..options
    })
}

#[test]
fn a_stream_over_packed_rings_arrives_whole_in_large_frames() {
    for format in packed() {
        let [sender, receiver] = stream_over(over(format), 50 << 20);
        let (sent, received) = (sender.stats.snapshot(), receiver.stats.snapshot());
        assert!(sent.tx_bytes / sent.tx_frames > 60_000, "{sent:?}");
        assert_eq!(received.invalid + received.lost, 0, "{received:?}");
    }
}

#[test]
fn small_packets_over_packed_rings_are_neither_lost_nor_reordered() {
    for format in packed() {
        let [_, receiver] = packets_over(over(format), small::Options::default(), 20_000);
        let received = receiver.stats.snapshot();
        assert_eq!(received.lost + received.reordered + received.invalid, 0, "{received:?}");
    }
}

fn packets(config: &Config, options: small::Options, count: u64) -> [Endpoint; 2] {
    packets_over(Bench::new(config), options, count)
}

fn packets_over(mut bench: Bench, options: small::Options, count: u64) -> [Endpoint; 2] {
    let receiver = bench.start(move |end| small::receive(end, &options));
    let sender = bench.start(move |end| small::send(end, &options));
    let mut both = vec![sender, receiver];
    bench.finish(&mut both, |all| all[1].stats.snapshot().rx_frames >= count);
    both.try_into().ok().unwrap()
}

#[test]
fn small_packets_in_a_window_are_neither_lost_nor_reordered() {
    for features in [Features::ALL, Features::VERSION_1 | Features::MRG_RXBUF] {
        let config = Config { features, ..Config::default() };
        let [sender, receiver] = packets(&config, small::Options::default(), 20_000);
        let (sent, received) = (sender.stats.snapshot(), receiver.stats.snapshot());
        let bad = received.lost + received.reordered + received.invalid;
        assert_eq!(bad, 0, "{received:?}");
        assert!(sent.tx_frames >= received.rx_frames);
        assert_eq!(receiver.stats.latency().len(), received.rx_frames);
        assert!(receiver.stats.latency().min() > 0);
        assert_eq!(received.rx_bytes, received.rx_frames * (64 - 42));
    }
}

#[test]
fn small_packets_keep_their_rate() {
    let options =
        small::Options { rate: small::Rate::PerSecond(5000), ..small::Options::default() };
    let start = Instant::now();
    let [sender, receiver] = packets(&Config::default(), options, 1000);
    let most = start.elapsed().as_secs_f64() * 5000.0 + 1.0;
    let sent = sender.stats.snapshot().tx_frames;
    assert!(sent as f64 <= most, "{sent} of {most}");
    let received = receiver.stats.snapshot();
    assert_eq!(received.lost + received.reordered, 0, "{received:?}");
}

#[test]
fn packets_that_complete_their_checksum_ask_nothing_of_the_device_and_arrive() {
    let options = small::Options { partial_checksum: false, ..small::Options::default() };
    let [sender, receiver] = packets(&Config::default(), options, 5000);
    let received = receiver.stats.snapshot();
    assert_eq!(received.lost + received.reordered + received.invalid, 0, "{received:?}");
    assert_eq!(sender.stats.snapshot().invalid, 0);
}

#[test]
fn packets_that_are_only_counted_are_neither_lost_nor_reordered() {
    let options = small::Options { verify: false, ..small::Options::default() };
    let [_, receiver] = packets(&Config::default(), options, 20_000);
    let received = receiver.stats.snapshot();
    assert_eq!(received.lost + received.reordered + received.invalid, 0, "{received:?}");
    assert_eq!(received.rx_bytes, received.rx_frames * (64 - 42));
    assert_eq!(receiver.stats.latency().len(), 0);
}

#[test]
fn a_stream_and_small_packets_share_the_queues() {
    let stream = bulk_options();
    let options = mixed::Options { stream, packets_per_s: 2000, ..mixed::Options::default() };
    let mut bench = Bench::new(&Config::default());
    let receiver = bench.start(move |end| mixed::receive(end, &options));
    let sender = bench.start(move |end| mixed::send(end, &options));
    let mut both = vec![sender, receiver];
    bench.finish(&mut both, |all| {
        let packets = all[1].stats.latency().len();
        packets >= 500 && all[1].stats.snapshot().rx_bytes > 20 << 20
    });
    let (sent, received) = (both[0].stats.snapshot(), both[1].stats.snapshot());
    assert_eq!(received.lost + received.invalid, 0, "{received:?}");
    assert_eq!(sent.invalid, 0, "{sent:?}");
    // No frame is lost here. Only the sender's timer may report losses, on a busy machine.
    assert!(sent.retransmitted == 0 || sent.timeouts > 0, "{sent:?}");
    assert!(received.delay_change_ns > 0);
}

#[test]
fn lost_small_packets_are_counted() {
    let config = Config { lose: |number| number.is_multiple_of(100), ..Config::default() };
    let options =
        small::Options { rate: small::Rate::PerSecond(50_000), ..small::Options::default() };
    let [_, receiver] = packets(&config, options, 5000);
    let received = receiver.stats.snapshot();
    // One frame in a hundred is lost, but no announcement.
    let expected = (received.rx_frames + received.lost) / 100;
    assert!(received.lost.abs_diff(expected) <= 2, "{received:?}");
    assert_eq!(received.reordered, 0);
}

#[test]
fn requests_are_answered_and_timed() {
    let mut bench = Bench::new(&Config::default());
    let server = bench.start(pingpong::respond);
    let client = bench.start(|end| pingpong::request(end, &pingpong::Options::default()));
    let mut both = vec![client, server];
    bench.finish(&mut both, |all| all[0].stats.snapshot().rx_frames >= 2000);
    let (client, server) = (both[0].stats.snapshot(), both[1].stats.snapshot());
    assert_eq!(client.lost + client.reordered + client.invalid, 0);
    assert_eq!(both[0].stats.latency().len(), client.rx_frames);
    assert!(server.tx_frames >= client.rx_frames);
}

#[test]
fn requests_at_a_rate_are_sent_whether_or_not_others_were_answered() {
    let config = Config { lose: |number| number.is_multiple_of(100), ..Config::default() };
    let mut bench = Bench::new(&config);
    let server = bench.start(pingpong::respond);
    let options = pingpong::Options::default();
    let client = bench.start(move |end| pingpong::request_at(end, &options, 5_000));
    let mut both = vec![client, server];
    // One in fifty of the requests and answers together is lost. Some frames are in flight. Their
    // number is larger for a moment if the machine stood still.
    let seen = std::cell::Cell::new((0, 0));
    bench.finish(&mut both, |all| {
        let client = all[0].stats.snapshot();
        let (sent, lost) = (client.tx_frames, client.tx_frames - client.rx_frames);
        seen.set((sent, lost));
        sent >= 2000 && (lost <= sent / 20 || sent >= 100_000)
    });
    let (sent, lost) = seen.get();
    assert!((sent / 100..=sent / 20).contains(&lost), "{lost} of {sent}");
    let client = both[0].stats.snapshot();
    assert_eq!(both[0].stats.latency().len(), client.rx_frames);
    assert_eq!(client.invalid, 0);
}

#[test]
fn sizes_that_are_no_packet_are_refused() {
    let options = small::Options { frame_bytes: 57, ..small::Options::default() };
    let mut bench = Bench::new(&Config::default());
    let sender = bench.start(move |end| small::send(end, &options));
    let error = sender.thread.join().unwrap().unwrap_err();
    assert!(matches!(error, LoadError::Size { bytes: 57, .. }), "{error}");
    drop(bench.vifs);
    bench.backend.join();
}
