"""Text to tokens: words, Hugging Face tokenizers, readable pieces and character offsets."""
