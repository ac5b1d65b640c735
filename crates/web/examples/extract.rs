//! Extracts the text of HTML files: `extract main|plain OUT_DIR FILE...` writes `OUT_DIR/NAME.txt` for each and reports the time.

use bessemer_web::encoding::decode;
use bessemer_web::extract::{Extractor, Main, Plain};
use bessemer_web::html::HtmlLimits;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [which, out, files @ ..] = &args[..] else { return Err("extract main|plain OUT_DIR FILE...".into()) };
    let extractor: &dyn Extractor = if which == "plain" { &Plain } else { &Main };
    let (mut bytes, mut seconds) = (0, 0.0);
    std::fs::create_dir_all(out)?;
    for file in files {
        let page = std::fs::read(file)?;
        let begun = std::time::Instant::now();
        let text = decode(&page, None, None).text;
        let extraction = extractor.extract(&text, &HtmlLimits::default())?;
        seconds += begun.elapsed().as_secs_f64();
        bytes += page.len();
        let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy();
        std::fs::write(Path::new(out).join(format!("{stem}.txt")), extraction.text)?;
    }
    let json = format!("{{\"files\": {}, \"bytes\": {bytes}, \"seconds\": {seconds:.6}}}\n", files.len());
    std::fs::write(Path::new(out).join("timing.json"), json)?;
    Ok(())
}
