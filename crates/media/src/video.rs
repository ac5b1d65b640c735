//! Frames of a video, through the `ffmpeg` and `ffprobe` programs.
//!
//! FFmpeg runs as a process of its own, so that what it does with hostile bytes stays outside; arguments are given as a list (no
//! shell), paths with the `file:` protocol and no other protocol is allowed, output is bounded, and a call that takes too long is
//! ended. Frames come as PPM pictures, upright as players show them.

use crate::image::Image;
use crate::{Limits, MediaError, Result};
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Header of a video file.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoHeader {
    /// Pixels in a row as stored; players may turn the picture.
    pub width: u64,
    /// Rows as stored.
    pub height: u64,
    /// Length in seconds.
    pub seconds: f64,
    /// Frames a second on average, where the file says so.
    pub rate: Option<f64>,
    /// Name of the codec.
    pub codec: String,
}

/// Frame that stands for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The first frame at that time or after it: decodes from the key frame before.
    Exact,
    /// The key frame before that time: one frame is decoded, however long the distance between key frames is.
    KeyFrame,
}

/// The programs, and how long they may take.
#[derive(Debug, Clone)]
pub struct Ffmpeg {
    ffmpeg: PathBuf,
    ffprobe: PathBuf,
}

impl Default for Ffmpeg {
    /// `ffmpeg` and `ffprobe` as the system finds them by name.
    fn default() -> Ffmpeg {
        Ffmpeg { ffmpeg: "ffmpeg".into(), ffprobe: "ffprobe".into() }
    }
}

/// `n` times in the middles of `n` equal parts of a video: t_i = (i + 1/2) seconds / n.
pub fn uniform_times(seconds: f64, n: usize) -> Vec<f64> {
    (0..n).map(|i| (i as f64 + 0.5) * seconds / n as f64).collect()
}

impl Ffmpeg {
    /// Programs at other places.
    pub fn at(ffmpeg: PathBuf, ffprobe: PathBuf) -> Ffmpeg {
        Ffmpeg { ffmpeg, ffprobe }
    }

    /// Whether both programs can be started.
    pub fn is_present(&self) -> bool {
        [&self.ffmpeg, &self.ffprobe].iter().all(|p| {
            let quiet = Command::new(p)
                .arg("-version")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            quiet.is_ok_and(|s| s.success())
        })
    }

    /// Size, length and codec of the first video stream.
    ///
    /// # Errors
    /// [`MediaError::NoProgram`], [`MediaError::Program`] (damaged files and time-outs), [`MediaError::TooLarge`].
    pub fn probe(&self, path: &Path, limits: &Limits) -> Result<VideoHeader> {
        let mut args: Vec<OsString> =
            ["-v", "error", "-protocol_whitelist", "file", "-print_format", "json"].map(Into::into).into();
        args.extend(["-show_format", "-show_streams", "-select_streams", "v:0", "-i"].map(Into::into));
        args.push(file_url(path));
        let out = run(&self.ffprobe, "ffprobe", &args, 1 << 20, limits)?;
        let wrong = |what: &str| MediaError::Program { program: "ffprobe", what: what.to_owned() };
        let json: serde_json::Value =
            serde_json::from_slice(&out).map_err(|e| wrong(&format!("unexpected output: {e}")))?;
        let stream = json.pointer("/streams/0").ok_or_else(|| wrong("the file has no video stream"))?;
        let number = |v: Option<&serde_json::Value>| {
            v?.as_str()?.parse::<f64>().ok().filter(|v| v.is_finite() && *v > 0.0)
        };
        let side = |name: &str| stream.get(name).and_then(serde_json::Value::as_u64).filter(|&v| v > 0);
        let (Some(width), Some(height)) = (side("width"), side("height")) else {
            return Err(wrong("the video stream states no size"));
        };
        let found = width.saturating_mul(height);
        if found > limits.pixels {
            return Err(MediaError::TooLarge {
                what: "pixels of a video frame",
                limit: limits.pixels,
                found,
            });
        }
        let seconds = number(stream.get("duration")).or_else(|| number(json.pointer("/format/duration")));
        let rate = stream.get("avg_frame_rate").and_then(|v| v.as_str()).and_then(|r| {
            let (a, b) = r.split_once('/')?;
            let rate = a.parse::<f64>().ok()? / b.parse::<f64>().ok()?;
            (rate.is_finite() && rate > 0.0).then_some(rate)
        });
        Ok(VideoHeader {
            width,
            height,
            seconds: seconds.ok_or_else(|| wrong("the file states no length"))?,
            rate,
            codec: stream.get("codec_name").and_then(|v| v.as_str()).unwrap_or("unknown").to_owned(),
        })
    }

    /// The frame at `time` seconds.
    ///
    /// # Errors
    /// As [`Ffmpeg::probe`]; [`MediaError::Program`] where there is no frame at that time.
    pub fn frame(&self, path: &Path, time: f64, seek: Seek, limits: &Limits) -> Result<Image> {
        let mut args: Vec<OsString> =
            ["-v", "error", "-nostdin", "-threads", "1", "-protocol_whitelist", "file"]
                .map(Into::into)
                .into();
        if seek == Seek::KeyFrame {
            args.extend(["-skip_frame", "nokey", "-noaccurate_seek", "-copyts"].map(Into::into));
        }
        args.extend(["-ss".into(), format!("{time:.6}").into(), "-i".into(), file_url(path)]);
        args.extend(
            [
                "-map",
                "0:v:0",
                "-frames:v",
                "1",
                "-f",
                "image2pipe",
                "-c:v",
                "ppm",
                "-pix_fmt",
                "rgb24",
                "pipe:1",
            ]
            .map(Into::into),
        );
        let out = run(&self.ffmpeg, "ffmpeg", &args, 3 * limits.pixels + 64, limits)?;
        if out.is_empty() {
            let what = format!("there is no frame at {time:.3} seconds");
            return Err(MediaError::Program { program: "ffmpeg", what });
        }
        parse_ppm(&out, limits)
    }

    /// `n` frames in the middles of `n` equal parts of the video.
    ///
    /// # Errors
    /// As [`Ffmpeg::probe`] and [`Ffmpeg::frame`]; [`MediaError::Argument`] for 0 or more than 65,536 frames.
    pub fn uniform_frames(&self, path: &Path, n: usize, seek: Seek, limits: &Limits) -> Result<Vec<Image>> {
        if !(1..=1 << 16).contains(&n) {
            return Err(MediaError::Argument(format!("video: wanted 1 to 65,536 frames, found {n}")));
        }
        let header = self.probe(path, limits)?;
        uniform_times(header.seconds, n).into_iter().map(|t| self.frame(path, t, seek, limits)).collect()
    }
}

/// A path that FFmpeg takes for nothing but a path.
fn file_url(path: &Path) -> OsString {
    let mut url = OsString::from("file:");
    url.push(path);
    url
}

/// Runs a program and returns its standard output, of at most `most` bytes.
fn run(program: &Path, name: &'static str, args: &[OsString], most: u64, limits: &Limits) -> Result<Vec<u8>> {
    let wrong = |what: String| MediaError::Program { program: name, what };
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => MediaError::NoProgram { program: program.display().to_string() },
            _ => wrong(format!("could not be started: {e}")),
        })?;
    let stdout = child.stdout.take().expect("standard output is piped");
    let stderr = child.stderr.take().expect("standard error is piped");
    let end = Instant::now() + Duration::from_secs(limits.program_seconds);
    std::thread::scope(|scope| {
        // A reader that has enough closes its end, and the program ends by itself.
        let reader = || std::thread::Builder::new();
        let readers = reader()
            .spawn_scoped(scope, move || read_at_most(stdout, most + 1))
            .and_then(|out| Ok((out, reader().spawn_scoped(scope, move || read_at_most(stderr, 1 << 14))?)));
        let (out, err) = match readers {
            Ok(readers) => readers,
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(wrong(bessemer_durable::thread_error(e).to_string()));
            }
        };
        let mut pause = Duration::from_millis(1);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) if Instant::now() >= end => {
                    let seconds = limits.program_seconds;
                    break Err(wrong(format!("took more than {seconds} seconds and was ended")));
                }
                Ok(None) => std::thread::sleep(pause),
                Err(e) => break Err(wrong(e.to_string())),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        if status.is_err() {
            // It may have ended in this moment; either way it is gone after the wait.
            let _ = child.kill();
            let _ = child.wait();
        }
        let out = out.join().expect("the reader does not panic").map_err(|e| wrong(e.to_string()))?;
        let err = err.join().expect("the reader does not panic").unwrap_or_default();
        let status = status?;
        if out.len() as u64 > most {
            return Err(MediaError::TooLarge {
                what: "bytes of a program's output",
                limit: most,
                found: out.len() as u64,
            });
        }
        if !status.success() {
            let said = String::from_utf8_lossy(&err);
            let last = said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message").trim();
            return Err(wrong(format!("{last} ({status})")));
        }
        Ok(out)
    })
}

fn read_at_most(input: impl Read, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A binary PPM with 8 bits a sample, as FFmpeg writes it: `P6\nW H\n255\n` and the pixels.
fn parse_ppm(bytes: &[u8], limits: &Limits) -> Result<Image> {
    let wrong = || MediaError::Program {
        program: "ffmpeg",
        what: "wanted one PPM picture, found something else".into(),
    };
    let mut lines = bytes.splitn(4, |&b| b == b'\n');
    let mut text = || std::str::from_utf8(lines.next()?).ok();
    let (Some("P6"), Some(size), Some("255")) = (text(), text(), text()) else { return Err(wrong()) };
    let (width, height) = size.split_once(' ').ok_or_else(wrong)?;
    let (width, height): (u32, u32) =
        (width.parse().map_err(|_| wrong())?, height.parse().map_err(|_| wrong())?);
    let found = u64::from(width) * u64::from(height);
    if found > limits.pixels {
        return Err(MediaError::TooLarge { what: "pixels of a video frame", limit: limits.pixels, found });
    }
    let data = lines.next().ok_or_else(wrong)?;
    Image::new(width as usize, height as usize, data.to_vec()).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_lie_in_the_middles() {
        assert_eq!(uniform_times(10.0, 4), [1.25, 3.75, 6.25, 8.75]);
    }

    #[test]
    fn an_absent_program_is_told_with_what_to_install() {
        let absent = Ffmpeg::at("/nonexistent/ffmpeg".into(), "/nonexistent/ffprobe".into());
        assert!(!absent.is_present());
        let e = absent.probe(Path::new("x.mp4"), &Limits::default()).unwrap_err();
        assert_eq!(e.reason(), "no-ffmpeg");
        assert!(e.to_string().contains("apt-get install ffmpeg"), "{e}");
    }

    #[test]
    fn a_program_that_hangs_is_ended_and_one_that_floods_is_cut() {
        let limits = Limits { program_seconds: 1, ..Limits::default() };
        let e = run(Path::new("sleep"), "sleep", &["30".into()], 10, &limits).unwrap_err();
        assert!(e.to_string().contains("more than 1 seconds"), "{e}");
        let e = run(Path::new("yes"), "yes", &[], 1000, &limits).unwrap_err();
        assert_eq!(e.reason(), "too-large");
    }

    #[test]
    fn pictures_are_parsed_strictly() {
        let limits = Limits::default();
        let image = parse_ppm(b"P6\n2 1\n255\n\n\n\n456", &limits).unwrap();
        assert_eq!((image.width(), image.data()), (2, &b"\n\n\n456"[..]));
        for bad in [
            &b"P5\n2 1\n255\n123456"[..],
            b"P6\n2 1\n255\n12345",
            b"P6\n2\n255\n",
            b"",
            b"P6\n4294967295 4294967295\n255\n",
        ] {
            assert!(parse_ppm(bad, &limits).is_err());
        }
    }
}
