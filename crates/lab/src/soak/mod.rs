//! The simulator as a tester.

mod case;
pub use case::Case;

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn many() {
        let n: u64 = std::env::var("N").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
        let mut events = 0;
        let mut fails = 0;
        for seed in 0..n {
            let t = std::time::Instant::now();
            match Case::draw(seed).run() {
                Ok(e) => events += e,
                Err(e) => { fails += 1; if fails < 15 { println!("{seed}: {e}"); } }
            }
            if t.elapsed().as_millis() > 2000 { println!("slow {seed} {:?}", t.elapsed()); }
        }
        println!("{events} events {fails} fails");
    }
}
