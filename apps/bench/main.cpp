// bench
int main() { return 70; }
