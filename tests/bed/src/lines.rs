//! Numbered lines without end over TCP from guest to guest, to check that a connection continues and delivers what was
//! sent.

use std::time::Duration;

use crate::{error::Result, process::wait_until, qemu::Guest};

const PATIENCE: Duration = Duration::from_secs(60);
/// Sends a thousand lines a second.
const LINES: &str = "i=0; while :; do j=0; while [ $j -lt 50 ]; do echo line $i; i=$((i+1)); j=$((j+1)); done; \
                     usleep 50000; done";

/// Counts the lines that arrive at a port, and those out of order. Between two guests no checksum protects the data,
/// so that corrupt bytes show here.
fn count(port: u16) -> String {
    let file = file(port);
    format!(
        "awk '$1!=\"line\"||$2!=NR-1{{bad++}} NR%100==0{{print NR, bad+0 >\"{file}\"; close(\"{file}\")}}'"
    )
}

fn file(port: u16) -> String {
    format!("/tmp/lines.{port}")
}

/// Makes `to` receive numbered lines at `port`, and `from` send them without end.
pub fn begin(from: &mut Guest, to: &mut Guest, to_ip: &str, port: u16) -> Result<()> {
    // The input of `nc` stays open. Otherwise `nc` would close the connection.
    let count = count(port);
    to.run(&format!("(sleep 999999 | nc -l -p {port} | {count}) >/dev/null 2>&1 &"), PATIENCE)?;
    let listens = format!("cat /proc/net/tcp* | grep -q ':{port:04X} '");
    to.run(&format!("until {listens}; do sleep 0.1; done"), PATIENCE)?;
    from.run(&format!("({LINES} | nc {to_ip} {port}) >/dev/null 2>&1 &"), PATIENCE).map(drop)
}

/// Number of lines that `guest` has received at `port`, and how many of them were wrong.
pub fn seen(guest: &mut Guest, port: u16) -> Result<[u64; 2]> {
    let text = guest.run(&format!("cat {} 2>/dev/null || true", file(port)), PATIENCE)?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    // The file has no numbers yet or is being written.
    Ok([numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)])
}

/// True if the connection into `guest` at `port` continues: it has more than `before` lines and no wrong ones. Prints a
/// message if not.
pub fn go_on(guest: &mut Guest, port: u16, before: &mut u64) -> Result<bool> {
    let (mut now, start) = ([0; 2], seen(guest, port)?[0].max(*before));
    let goes_on = wait_until("lines to come", PATIENCE, || {
        now = seen(guest, port)?;
        Ok(now[0] > start)
    });
    *before = now[0];
    let is_good = goes_on.is_ok() && now[1] == 0;
    if !is_good {
        println!("a connection has {} lines, of which {} are wrong", now[0], now[1]);
    }
    Ok(is_good)
}
