//! Requests and answers over TCP, like those of memcached's and a web server's clients, for VMs
//! that a switch connects. The server answers each request. Each client asks again when it has its
//! answer:
//!
//! ```sh
//! talk serve 11211 40 300                        # requests of 40 bytes, answers of 300
//! talk ask 10.77.0.2:11211 40 300 8 5 keep       # 8 connections for 5 s
//! talk ask 10.77.0.2:80 200 16384 4 5 close      # a connection for each request
//! ```

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Significant digits of the [`Histogram`]: an error of one per mille.
const DIGITS: u8 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["serve", port, request, answer] => {
            serve(port.parse()?, request.parse()?, answer.parse()?)?;
        }
        ["ask", server, request, answer, connections, seconds, how @ ("keep" | "close")] => {
            let client = Client {
                server,
                request_bytes: request.parse()?,
                answer_bytes: answer.parse()?,
                time: Duration::from_secs(seconds.parse()?),
                keeps: *how == "keep",
            };
            client.run(connections.parse()?)?;
        }
        _ => {
            return Err("usage: talk serve PORT REQUEST_BYTES ANSWER_BYTES, \
                        or talk ask SERVER:PORT REQUEST_BYTES ANSWER_BYTES CONNECTIONS SECONDS keep|close"
                .into());
        }
    }
    Ok(())
}

fn serve(port: u16, request_bytes: usize, answer_bytes: usize) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        thread::spawn(move || -> io::Result<()> {
            stream.set_nodelay(true)?;
            let (mut request, answer) = (vec![0; request_bytes], vec![b'a'; answer_bytes]);
            // Ends when the client closes.
            while stream.read_exact(&mut request).is_ok() {
                stream.write_all(&answer)?;
            }
            Ok(())
        });
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Client<'a> {
    server: &'a str,
    request_bytes: usize,
    answer_bytes: usize,
    time: Duration,
    /// Keeps its connections; otherwise it opens one for each request.
    keeps: bool,
}

impl Client<'_> {
    /// Asks over `connections` connections at a time, and prints the result.
    fn run(self, connections: usize) -> Result<(), Box<dyn Error>> {
        let start = Instant::now();
        let mut times = Histogram::<u64>::new(DIGITS)?;
        thread::scope(|scope| {
            let asking: Vec<_> = (0..connections).map(|_| scope.spawn(|| self.ask())).collect();
            for asked in asking {
                let asked = asked.join().map_err(|_| "a client panicked")?;
                times.add(asked.map_err(|error| error.to_string())?)?;
            }
            Ok::<_, Box<dyn Error>>(())
        })?;
        let rate = times.len() as f64 / start.elapsed().as_secs_f64();
        let us = |quantile| times.value_at_quantile(quantile) as f64 / 1_000.0;
        println!(
            "{} asked  {} answered  {rate:.1} /s  p50 {:.1} us  p99 {:.1} us  p99.9 {:.1} us",
            times.len(),
            times.len(),
            us(0.5),
            us(0.99),
            us(0.999)
        );
        Ok(())
    }

    fn ask(self) -> Result<Histogram<u64>, Box<dyn Error + Send + Sync>> {
        let mut times = Histogram::new(DIGITS)?;
        let (request, mut answer) = (vec![b'r'; self.request_bytes], vec![0; self.answer_bytes]);
        let (start, mut kept) = (Instant::now(), None);
        while start.elapsed() < self.time {
            let begin = Instant::now();
            let mut stream = match kept.take() {
                Some(stream) => stream,
                None => {
                    let stream = TcpStream::connect(self.server)?;
                    stream.set_nodelay(true)?;
                    stream
                }
            };
            stream.write_all(&request)?;
            stream.read_exact(&mut answer)?;
            times.record(u64::try_from(begin.elapsed().as_nanos())?)?;
            kept = self.keeps.then_some(stream);
        }
        Ok(times)
    }
}
