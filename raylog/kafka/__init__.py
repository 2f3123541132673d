"""What holds for every Kafka request, whichever server answers it: who asks (``context``), and what runs before its handler (``chain``)."""
