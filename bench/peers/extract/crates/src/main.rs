//! `extract-peers CRATE OUT_DIR FILE...`: writes OUT_DIR/NAME.txt for each page and OUT_DIR/timing.json. A panic counts
//! as no output and is reported.

use std::path::Path;

fn extract(which: &str, page: &str) -> Option<String> {
    match which {
        "trafilatura" => trafilatura::extract(page, &trafilatura::Options::default()).ok().map(|r| r.content_text),
        "rs-trafilatura" => rs_trafilatura::extract(page).ok().map(|r| r.content_text),
        "libreadability" => libreadability::extract(page, None).ok().map(|a| a.text_content),
        "dom_smoothie" => dom_smoothie::Readability::new(page, None, None)
            .ok()?
            .parse()
            .ok()
            .map(|a| a.text_content.to_string()),
        _ => panic!("unknown crate {which}"),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (which, out) = (args[0].clone(), args[1].clone());
    std::fs::create_dir_all(&out).unwrap();
    let (mut bytes, mut seconds) = (0, 0.0);
    for file in &args[2..] {
        let page = String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned();
        bytes += page.len();
        let begun = std::time::Instant::now();
        let w = which.clone();
        // A stack as large as a server would give; deep pages overflow smaller ones.
        let result = std::thread::Builder::new().stack_size(64 << 20).spawn(move || extract(&w, &page)).unwrap().join();
        seconds += begun.elapsed().as_secs_f64();
        match result {
            Ok(Some(text)) => {
                let name = Path::new(file).file_stem().unwrap().to_string_lossy().into_owned();
                std::fs::write(format!("{out}/{name}.txt"), text).unwrap();
            }
            Ok(None) => eprintln!("{file}: no text"),
            Err(_) => eprintln!("{file}: panic"),
        }
    }
    std::fs::write(format!("{out}/timing.json"), format!("{{\"bytes\": {bytes}, \"seconds\": {seconds}}}")).unwrap();
}
