//! Images, audio and video as arrays of numbers: decoding, resizing, patches, log-mel spectrograms, perceptual hashes.
