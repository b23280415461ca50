//! Files for `weir check`: it must end soon, print little, and print nothing that controls a terminal.

use std::{
    io::{Read, Write},
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::fs::{FileType, Mode, mknodat};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{Strike, harm},
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(sixty_thousand_unknown_keys, "writes 60,000 keys that there are not"),
    attack!(tables_that_are_deep, "nests arrays and tables a thousand deep"),
    attack!(controls_in_values, "writes what a terminal obeys into names, values and keys"),
    attack!(lines_of_a_megabyte, "writes one line of 1 MiB"),
    attack!(more_ports_than_there_may_be, "writes 20,000 interfaces"),
    attack!(files_that_never_end, "names a pipe, a device and a directory as the file"),
    attack!(filters_that_explode, "writes expressions that compile to very much"),
    attack!(numbers_that_are_none, "writes numbers of a thousand digits, dates, infinities"),
    attack!(bytes_that_are_no_text, "writes bytes that are no UTF-8, and a BOM"),
    attack!(
        names_that_are_paths,
        "writes names and sockets that lead elsewhere, or are one another's"
    ),
];

/// Longest time for `weir check` on a busy machine with debug assertions.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limit of the output (bytes).
const PRINTED_MAX: usize = 1 << 20;

/// Runs `weir check` on a file and judges its behaviour. True if the file is valid.
fn checked(field: &Field, path: &std::path::Path, what: &str) -> Strike<bool> {
    let begin = Instant::now();
    let mut child = field
        .weir()
        .arg("check")
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let outputs = [child.stdout.take().map(read_all), child.stderr.take().map(read_all)];
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return harm(format!("`weir check` of {what} takes more than {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let printed: Vec<u8> =
        outputs.into_iter().flatten().filter_map(|thread| thread.join().ok()).flatten().collect();
    if printed.len() > PRINTED_MAX {
        return harm(format!("`weir check` of {what} prints {} bytes", printed.len()));
    }
    let text = String::from_utf8_lossy(&printed);
    if let Some(control) = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        return harm(format!("`weir check` of {what} prints {control:?}"));
    }
    match status.code() {
        Some(0) => Ok(true),
        // Status 3 means problems in the file, status 1 that it cannot be read.
        Some(1..=3) => Ok(false),
        _ => harm(format!("`weir check` of {what} ends with {status}")),
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        all
    })
}

/// Checks a file with the content `text`, which is not valid.
fn written(field: &Field, text: &[u8], what: &str) -> Strike {
    let path = field.file("check.toml");
    std::fs::File::create(&path)?.write_all(text)?;
    let good = checked(field, &path, what);
    let _ = std::fs::remove_file(&path);
    if good? {
        return harm(format!("{what} is good for `weir check`"));
    }
    field.struck();
    Ok(())
}

fn sixty_thousand_unknown_keys(field: &Field) -> Strike {
    let keys: String = (0..60_000).map(|number| format!("k{number} = 1\n")).collect();
    written(field, format!("[switch]\n{keys}").as_bytes(), "60,000 unknown keys")?;
    written(field, keys.as_bytes(), "60,000 unknown keys at the top")
}

fn tables_that_are_deep(field: &Field) -> Strike {
    let arrays = format!("a = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    written(field, arrays.as_bytes(), "arrays in arrays")?;
    let tables = format!("a = {}1{}", "{b = ".repeat(50_000), "}".repeat(50_000));
    written(field, tables.as_bytes(), "tables in tables")?;
    written(field, format!("a{} = 1", ".b".repeat(200_000)).as_bytes(), "a key of 200,000 parts")
}

fn controls_in_values(field: &Field) -> Strike {
    let text = "[switch]\nlatency_budget = \"\\u001b[2J\\u0007\\u009b31m\"\n\"\\u001b[31m\" = 1\n\
                [vif.\"\\u001b]0;x\\u0007\"]\nmac = \"\\u001b[1m\"\n";
    written(field, text.as_bytes(), "controls that are escaped")?;
    written(field, b"[switch]\nworkers = \"\x1b[2J\"\n", "controls as they are")
}

fn lines_of_a_megabyte(field: &Field) -> Strike {
    let long = "x".repeat((1 << 20) - 100);
    written(field, format!("[switch]\nworkers = \"{long}\"\n").as_bytes(), "a line of 1 MiB")?;
    written(field, format!("[switch]\n{long} = 1\n").as_bytes(), "a key of 1 MiB")?;
    written(field, "# more than a file may have\n".repeat(100_000).as_bytes(), "a file of 3 MB")
}

fn more_ports_than_there_may_be(field: &Field) -> Strike {
    let ports: String = (0..20_000).map(|number| format!("[vif.v{number}]\n")).collect();
    written(field, ports.as_bytes(), "20,000 interfaces")?;
    let same: String =
        (0..1000).map(|number| format!("[vif.v{number}]\nmac = \"02:00:00:00:00:01\"\n")).collect();
    written(field, same.as_bytes(), "1,000 interfaces of one address")
}

fn files_that_never_end(field: &Field) -> Strike {
    let fifo = field.file("fifo");
    mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let waited = checked(field, &fifo, "a pipe");
    let _ = std::fs::remove_file(&fifo);
    waited?;
    for path in ["/dev/zero", "/dev/full", "/", "/proc/self/mem"] {
        checked(field, path.as_ref(), path)?;
    }
    Ok(())
}

fn filters_that_explode(field: &Field) -> Strike {
    let host = |number| format!("host 10.{}.{}.1", number / 256, number % 256);
    let many: Vec<_> = (0..40).map(host).collect();
    let deep = format!("{}ip{}", "(".repeat(500), ")".repeat(500));
    let chain = ["portrange 1-65535 and not portrange 2-65534"; 20].join(" or ");
    for expression in
        [many.join(" and "), deep, chain, "ether[0:4] % 0 = 1".into(), "x".repeat(5000)]
    {
        let text = format!(
            "[vif.a]\n[[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"{expression}\"\n"
        );
        let path = field.file("filter.toml");
        std::fs::write(&path, text)?;
        let done = checked(field, &path, "a filter");
        let _ = std::fs::remove_file(&path);
        done?;
        field.struck();
    }
    Ok(())
}

fn numbers_that_are_none(field: &Field) -> Strike {
    let digits = "9".repeat(1000);
    for value in
        [digits.as_str(), "-1", "inf", "nan", "1979-05-27T07:32:00Z", "0x7fffffffffffffff", "1e400"]
    {
        let text =
            format!("[switch]\nworkers = {value}\n[vif.a]\nqueues = {value}\nweight = {value}\n");
        written(field, text.as_bytes(), "a number that is none")?;
    }
    Ok(())
}

fn bytes_that_are_no_text(field: &Field) -> Strike {
    written(field, b"\xff\xfe[\x00s\x00", "UTF-16")?;
    written(field, b"[switch]\nworkers = \"\xf0\x28\x8c\x28\"\n", "half characters")?;
    written(field, &[0; 4096], "zeros")
}

fn names_that_are_paths(field: &Field) -> Strike {
    for name in ["../x", "a/b", ".", "..", " "] {
        written(field, format!("[vif.\"{name}\"]\n").as_bytes(), "a name that is a path")?;
    }
    let same = "[vif.a]\nsocket = \"/tmp/x\"\n[vif.b]\nsocket = \"/tmp/x\"\n";
    written(field, same.as_bytes(), "one socket for two interfaces")
}
