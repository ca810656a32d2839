"""What an expensive stage made is kept, and made once. Needs the extra ``memo``."""
